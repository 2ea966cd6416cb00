/* What every message of the worker link begins with, and the columns of plan and result have in
 * common. */
#ifndef TANDEM_PROTO_ENVELOPE_H
#define TANDEM_PROTO_ENVELOPE_H

#include "proto/limits.h"

/* clang-format off */
#define ENVELOPE_FIELDS(X, T) \
    X(T, 2, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator") \
    X(T, 3, epoch, U64, none, REQUIRED, 1, UINT64_MAX, "of this attachment")

/* Layout 1: one column for each member of a row. */
#define ROWS_FIELDS(X, T) \
    X(T, 5, layout, U32, none, REQUIRED, 1, 1, "version of the columns") \
    X(T, 6, rows, U32, none, REQUIRED, 0, LIMIT_SLOTS, "values of each column")
/* clang-format on */

enum { ROWS_LAYOUT = 1 };

#endif
