#include "coordinator/listener_probe.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PROBE_INTERVAL_NS (2 * NS_PER_S)
#define PROBE_PATIENCE_NS (1 * NS_PER_S)

enum { FAILURES_UNTIL_WEDGED = 2, HELLO_BYTES = 8, FRAME_HEAD_BYTES = 9, REQUEST_ID_BYTES = 4 };

/* What a REQ socket says first. */
static const uint8_t HELLO[HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

void listener_probe_open(struct listener_probe *probe, struct event_loop *loop, const char *path,
                         const uint8_t *message, size_t message_bytes)
{
    *probe = (struct listener_probe){.loop = loop, .path = path, .descriptor = -1};
    size_t total = HELLO_BYTES + FRAME_HEAD_BYTES + REQUEST_ID_BYTES + message_bytes;
    CHECK(total <= PROBE_QUESTION_BYTES);
    uint8_t *out = probe->question;
    memcpy(out, HELLO, HELLO_BYTES);
    out[HELLO_BYTES] = 1;
    uint64_t length = htobe64(REQUEST_ID_BYTES + message_bytes);
    memcpy(out + HELLO_BYTES + 1, &length, sizeof length);
    uint32_t id = htobe32(0x80000001u);
    memcpy(out + HELLO_BYTES + FRAME_HEAD_BYTES, &id, sizeof id);
    memcpy(out + total - message_bytes, message, message_bytes);
    probe->question_bytes = total;
}

static void end_probe(struct listener_probe *probe)
{
    if (probe->descriptor < 0)
        return;
    event_loop_remove(probe->loop, probe->descriptor);
    close(probe->descriptor);
    probe->descriptor = -1;
}

void listener_probe_close(struct listener_probe *probe)
{
    if (probe->loop != NULL)
        end_probe(probe);
}

/* Reads on; true when the whole answer is there. */
static bool read_answer(struct listener_probe *probe)
{
    uint8_t rest[4096];
    for (;;) {
        bool in_head = probe->head_bytes < sizeof probe->head;
        uint8_t *to = in_head ? probe->head + probe->head_bytes : rest;
        size_t room = in_head ? sizeof probe->head - probe->head_bytes : sizeof rest;
        ssize_t got = recv(probe->descriptor, to, room, 0);
        if (got <= 0)
            return false;
        if (!in_head) {
            probe->received_bytes += (uint64_t)got;
        } else {
            probe->head_bytes += (size_t)got;
            memcpy(&probe->answer_bytes, probe->head + HELLO_BYTES + 1, sizeof(uint64_t));
            probe->answer_bytes = be64toh(probe->answer_bytes);
        }
        if (probe->head_bytes == sizeof probe->head && probe->received_bytes >= probe->answer_bytes)
            return true;
    }
}

static void note_answer(struct listener_probe *probe)
{
    end_probe(probe);
    probe->failures = 0;
    probe->deadline_ns = probe->started_ns + PROBE_INTERVAL_NS;
}

static void probe_readable(void *context, uint32_t events)
{
    struct listener_probe *probe = context;
    if (read_answer(probe))
        note_answer(probe);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        probe->deadline_ns = 0; /* cut off: no answer will come, the tick counts it */
}

/* False: no question could be asked. */
static bool ask(struct listener_probe *probe, int descriptor)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, probe->path, strlen(probe->path));
    if (connect(descriptor, (const struct sockaddr *)&address, sizeof address) != 0)
        return false;
    ssize_t sent = send(descriptor, probe->question, probe->question_bytes, MSG_NOSIGNAL);
    return sent == (ssize_t)probe->question_bytes &&
           event_loop_add(probe->loop, descriptor, EPOLLIN, probe_readable, probe) == STATUS_OK;
}

static void start_probe(struct listener_probe *probe, uint64_t now_ns)
{
    probe->started_ns = now_ns;
    probe->deadline_ns = now_ns + PROBE_PATIENCE_NS;
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        return; /* out of descriptors: says nothing about the listener */
    probe->head_bytes = 0;
    probe->answer_bytes = 0;
    probe->received_bytes = 0;
    if (ask(probe, descriptor)) {
        probe->descriptor = descriptor;
    } else {
        close(descriptor);
        probe->failures++;
    }
}

bool listener_probe_tick(struct listener_probe *probe, uint64_t now_ns)
{
    if (now_ns < probe->deadline_ns)
        return false;
    if (probe->descriptor >= 0) {
        if (read_answer(probe)) { /* the loop was late itself: the answer waited in the socket */
            note_answer(probe);
            return false;
        }
        end_probe(probe);
        probe->failures++;
    }
    if (probe->failures >= FAILURES_UNTIL_WEDGED) {
        probe->failures = 0;
        probe->deadline_ns = now_ns;
        return true;
    }
    start_probe(probe, now_ns);
    return false;
}
