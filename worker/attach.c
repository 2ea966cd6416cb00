#include "worker/attach.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/packet_socket.h"
#include "worker/fault_points.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PAUSE_FIRST_NS (50 * NS_PER_MS)
#define PAUSE_MOST_NS  (1 * NS_PER_S)

void attach_open(struct attach *attach, struct event_loop *loop, const char *path,
                 const struct attach_hello *hello)
{
    *attach = (struct attach){.loop = loop,
                              .path = path,
                              .hello = hello,
                              .segment = -1,
                              .state = ATTACH_WAITING,
                              .descriptor = -1,
                              .pause_ns = PAUSE_FIRST_NS};
}

static void disconnect(struct attach *attach)
{
    if (attach->descriptor < 0)
        return;
    event_loop_remove(attach->loop, attach->descriptor);
    close(attach->descriptor);
    attach->descriptor = -1;
    attach->readable = false;
}

void attach_close(struct attach *attach)
{
    disconnect(attach);
}

void attach_set_segment(struct attach *attach, int descriptor)
{
    attach->segment = descriptor;
}

void attach_retry(struct attach *attach, uint64_t now_ns)
{
    disconnect(attach);
    attach->state = ATTACH_WAITING;
    attach->retry_ns = now_ns + attach->pause_ns;
    attach->pause_ns = attach->pause_ns * 2 < PAUSE_MOST_NS ? attach->pause_ns * 2 : PAUSE_MOST_NS;
}

static void note_readable(void *context, uint32_t events)
{
    struct attach *attach = context;
    (void)events;
    attach->readable = true;
}

static enum status say_hello(struct attach *attach)
{
    size_t length;
    enum status status =
        attach_hello_encode(attach->hello, attach->packet, sizeof attach->packet, &length);
    CHECK(status == STATUS_OK);
    fault_point(FAULT_BEFORE_HELLO);
    status = packet_socket_send(attach->descriptor, attach->packet, length, attach->segment);
    if (status == STATUS_OK)
        fault_point(FAULT_AFTER_HELLO);
    return status;
}

enum status attach_tick(struct attach *attach, uint64_t now_ns)
{
    if (attach->state != ATTACH_WAITING || now_ns < attach->retry_ns)
        return STATUS_OK;
    enum status status = packet_socket_connect(attach->path, &attach->descriptor);
    if (status == STATUS_OK) {
        fcntl(attach->descriptor, F_SETFL, O_NONBLOCK);
        status = event_loop_add(attach->loop, attach->descriptor, EPOLLIN, note_readable, attach);
        if (status != STATUS_OK) {
            close(attach->descriptor);
            attach->descriptor = -1;
        } else {
            status = say_hello(attach);
        }
    }
    if (status == STATUS_OK) {
        attach->state = ATTACH_GREETED;
        return STATUS_OK;
    }
    if (!attach->waiting_told)
        log_info("waiting_for_coordinator", "path=\"%s\"", attach->path);
    attach->waiting_told = true;
    attach_retry(attach, now_ns);
    return status == STATUS_PERMISSION ? status : STATUS_OK;
}

uint64_t attach_next_deadline_ns(const struct attach *attach)
{
    return attach->state == ATTACH_WAITING ? attach->retry_ns : EVENT_LOOP_NO_DEADLINE;
}

static bool take_answer(struct attach *attach, size_t length, int passed,
                        struct attach_event *out_event)
{
    struct wire_error error;
    if (attach_answer_decode(attach->packet, length, &out_event->answer, &error) != STATUS_OK) {
        log_warn("attach_answer_bad", "reason=\"%s\"", error.message);
        return false;
    }
    out_event->descriptor = passed;
    switch (out_event->answer.type) {
    case ATTACH_ANSWER_ATTACH:
        if (attach->state != ATTACH_GREETED || passed < 0)
            return false;
        attach->state = ATTACH_ATTACHED;
        attach->pause_ns = PAUSE_FIRST_NS;
        attach->waiting_told = false;
        out_event->kind = ATTACH_EVENT_ATTACHED;
        return true;
    case ATTACH_ANSWER_STANDBY:
        out_event->kind = ATTACH_EVENT_STANDBY;
        return true;
    case ATTACH_ANSWER_REFUSED:
        out_event->kind = ATTACH_EVENT_REFUSED;
        return true;
    default:
        return false; /* of a later version of the protocol */
    }
}

bool attach_next(struct attach *attach, struct attach_event *out_event, uint64_t now_ns)
{
    while (attach->readable) {
        size_t length;
        int passed = -1;
        enum status status = packet_socket_receive(attach->descriptor, attach->packet,
                                                   sizeof attach->packet, &length, &passed);
        if (status == STATUS_AGAIN) {
            attach->readable = false;
            return false;
        }
        if (status != STATUS_OK) {
            attach_retry(attach, now_ns);
            out_event->kind = ATTACH_EVENT_LOST;
            return true;
        }
        bool told = take_answer(attach, length, passed, out_event);
        bool keeps = told && out_event->kind == ATTACH_EVENT_ATTACHED;
        if (passed >= 0 && !keeps)
            close(passed);
        if (told && out_event->kind == ATTACH_EVENT_REFUSED)
            attach_retry(attach, now_ns);
        if (told)
            return true;
    }
    return false;
}
