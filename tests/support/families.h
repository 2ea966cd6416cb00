/* Every place where messages arrive, for tests that must hold for all messages. */
#ifndef TANDEM_TESTS_SUPPORT_FAMILIES_H
#define TANDEM_TESTS_SUPPORT_FAMILIES_H

#include "proto/client_messages.h"
#include "proto/worker_messages.h"

static const struct wire_family *const families[] = {
    &client_request_family, &client_answer_family, &attach_request_family,
    &attach_answer_family,  &worker_order_family,  &worker_report_family,
};
enum { FAMILY_COUNT = sizeof families / sizeof families[0], MESSAGE_BYTES_MAX = 4096 };

#endif
