#include "coordinator/client_port.h"

#include "common/check.h"
#include "common/log.h"
#include "common/message_queue.h"
#include "common/run_directory.h"
#include "coordinator/hangup_sweep.h"
#include "coordinator/listener_probe.h"

#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LISTENERS_MAX = 256,        /* each costs a descriptor: the old ones stay for their pipes */
    HANG_UPS_MAX = 1024,        /* hints not yet looked at; more are dropped */
    SMALL_ANSWER_BYTES = 16384, /* encoded on the stack and copied */
    UNSENT_BYTES_MAX =
        64 << 20, /* of answers that nobody reads; beyond it only small ones go out */
    UNSENT_RETRY_MS = 1000,
    SEND_TIMEOUT_MS = 2000,
    SOCKET_MODE = 0660,
    /* Beyond the message a frame holds the request ids of the devices it came through. */
    FRAME_BYTES_MAX = LIMIT_CLIENT_FRAME_BYTES + 64,
};

enum call_state {
    CALL_RECEIVING = 1, /* nng has it */
    CALL_SERVED,        /* handed out, not answered */
    CALL_SENDING,       /* nng has it */
};

/* `state` is written by the loop and, when an answer was sent, by the callback, never by both at a
 * time: between the start of an operation and its callback only nng holds the call. */
struct call {
    struct client_port *port;
    uint32_t index;
    uint32_t serial; /* tells the uses of one context apart */
    _Atomic enum call_state state;
    bool named;
    nng_ctx context;
    nng_aio *aio; /* one operation at a time */
    nng_pipe pipe;
    size_t sending_bytes; /* of the answer under way */
};

struct client_port {
    struct event_loop *loop; /* borrowed */
    const char *path;        /* borrowed */
    nng_socket socket;
    struct call *calls; /* [CLIENT_CALLS_MAX], the first call_count are open */
    uint32_t call_count;
    uint32_t listeners;
    atomic_uint idle;                 /* receiving */
    atomic_uint sending;              /* answers under way */
    atomic_size_t sending_bytes;      /* and what they hold */
    struct message_queue completions; /* uint32_t: index of a call */
    struct message_queue hang_ups;    /* nng_pipe */
    nng_msg *borrowed;                /* frame of the last event */
    nng_pipe gone;                    /* its calls are being looked for from gone_index on */
    uint32_t gone_index;
    uint32_t crowded_at; /* free contexts when it was last told; no news, no second telling */
    bool short_told;     /* the log knows that contexts cannot be opened */
    struct listener_probe probe;
    struct hangup_sweep sweep;
};

static uint64_t handle_of(const struct call *call)
{
    return ((uint64_t)call->serial << 32) | call->index;
}

static void start_receive(struct call *call)
{
    atomic_store(&call->state, CALL_RECEIVING);
    atomic_fetch_add(&call->port->idle, 1);
    nng_aio_set_timeout(call->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(call->context, call->aio);
}

/* On a thread of nng. A sent answer is followed by the next receive without a detour through the
 * loop; whatever needs a decision goes there. */
static void call_completed(void *context)
{
    struct call *call = context;
    struct client_port *port = call->port;
    if (atomic_load(&call->state) == CALL_RECEIVING) {
        atomic_fetch_sub(&port->idle, 1);
    } else {
        atomic_fetch_sub(&port->sending, 1);
        atomic_fetch_sub(&port->sending_bytes, call->sending_bytes);
        if (nng_aio_result(call->aio) == 0) {
            start_receive(call);
            return;
        }
    }
    enum status status = message_queue_push(&port->completions, &call->index);
    CHECK(status == STATUS_OK); /* one place per call, and a call is in it once at most */
}

/* On a thread of nng. A hint: the loop treats a lost one as a client that does not poll. */
static void pipe_gone(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct client_port *port = context;
    (void)event;
    enum status status = message_queue_push(&port->hang_ups, &pipe);
    (void)status;
}

static enum status open_call(struct client_port *port)
{
    struct call *call = &port->calls[port->call_count];
    *call = (struct call){.port = port, .index = port->call_count, .serial = 1};
    if (nng_ctx_open(&call->context, port->socket) != 0)
        return STATUS_OUT_OF_MEMORY;
    if (nng_aio_alloc(&call->aio, call_completed, call) != 0) {
        nng_ctx_close(call->context);
        return STATUS_OUT_OF_MEMORY;
    }
    port->call_count++;
    start_receive(call);
    return STATUS_OK;
}

/* Opens contexts until enough are idle. */
static void keep_some_idle(struct client_port *port)
{
    while (atomic_load(&port->idle) < CLIENT_CALLS_IDLE_MIN &&
           port->call_count < CLIENT_CALLS_MAX) {
        if (open_call(port) != STATUS_OK) {
            if (!port->short_told)
                log_warn("client_calls_short", "open=%u", port->call_count);
            port->short_told = true;
            return;
        }
    }
}

static enum status add_listener(struct client_port *port, struct text *why)
{
    char url[SOCKET_PATH_BYTES + 8];
    snprintf(url, sizeof url, "ipc://%s", port->path);
    nng_listener listener;
    int error = nng_listener_create(&listener, port->socket, url);
    if (error == 0)
        error = nng_listener_set_size(listener, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    if (error == 0)
        error = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, SOCKET_MODE);
    if (error == 0)
        error = nng_listener_start(listener, 0);
    if (error != 0) {
        text_set(why, "cannot listen at \"%s\": %s", port->path, nng_strerror(error));
        return error == NNG_EPERM ? STATUS_PERMISSION : STATUS_SYSTEM;
    }
    port->listeners++;
    return STATUS_OK;
}

static enum status open_socket(struct client_port *port, struct text *why)
{
    int error = nng_rep0_open(&port->socket);
    /* The bound comes before the first listener: without it nine bytes can end the process. */
    if (error == 0)
        error = nng_socket_set_size(port->socket, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    if (error == 0)
        error = nng_pipe_notify(port->socket, NNG_PIPE_EV_REM_POST, pipe_gone, port);
    if (error != 0) {
        text_set(why, "cannot open the client socket: %s", nng_strerror(error));
        return STATUS_SYSTEM;
    }
    return add_listener(port, why);
}

static void open_probe(struct client_port *port)
{
    struct client_request question = {.type = CLIENT_HEALTH};
    uint8_t message[PROBE_QUESTION_BYTES / 2];
    size_t bytes = 0;
    enum status status = client_request_encode(&question, message, sizeof message, &bytes);
    CHECK(status == STATUS_OK);
    listener_probe_open(&port->probe, port->loop, port->path, message, bytes);
}

enum status client_port_open(struct event_loop *loop, const char *path,
                             struct client_port **out_port, struct text *why)
{
    struct client_port *port = calloc(1, sizeof *port);
    if (port == NULL)
        return STATUS_OUT_OF_MEMORY;
    port->loop = loop;
    port->path = path;
    port->gone_index = CLIENT_CALLS_MAX;
    port->calls = calloc(CLIENT_CALLS_MAX, sizeof *port->calls);
    enum status status = port->calls != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = message_queue_init(&port->completions, CLIENT_CALLS_MAX, sizeof(uint32_t), loop);
    if (status == STATUS_OK)
        status = message_queue_init(&port->hang_ups, HANG_UPS_MAX, sizeof(nng_pipe), loop);
    if (status == STATUS_OK)
        status = open_socket(port, why);
    if (status != STATUS_OK) {
        /* The caller ends the process; what nng holds ends with it. */
        if (status == STATUS_OUT_OF_MEMORY)
            text_set(why, "out of memory for the client socket");
        return status;
    }
    keep_some_idle(port);
    open_probe(port);
    *out_port = port;
    return STATUS_OK;
}

void client_port_stop_listening(struct client_port *port)
{
    listener_probe_close(&port->probe);
    unlink(port->path);
    port->listeners = 0;
}

static void send_message(struct call *call, nng_msg *message)
{
    struct client_port *port = call->port;
    call->serial++; /* from here on the handle is void */
    atomic_store(&call->state, CALL_SENDING);
    atomic_fetch_add(&port->sending, 1);
    call->sending_bytes = nng_msg_len(message);
    atomic_fetch_add(&port->sending_bytes, call->sending_bytes);
    nng_aio_set_msg(call->aio, message);
    nng_aio_set_timeout(call->aio, SEND_TIMEOUT_MS);
    nng_ctx_send(call->context, call->aio);
}

/* Clients that ask and do not read would otherwise decide how much memory their answers take. */
static struct client_answer refusal_of_large(bool named)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_ERROR, .named = named};
    answer.error.code = ERROR_CODE_OVERLOADED;
    answer.error.message = wire_text_of("too many large answers are not read yet; ask again later");
    answer.error.has_retry_after_ms = true;
    answer.error.retry_after_ms = UNSENT_RETRY_MS;
    return answer;
}

static nng_msg *copy_of(const uint8_t *bytes, size_t length)
{
    nng_msg *message;
    if (nng_msg_alloc(&message, length) != 0)
        return NULL;
    memcpy(nng_msg_body(message), bytes, length);
    return message;
}

static nng_msg *encode(const struct client_port *port, const struct client_answer *answer)
{
    uint8_t small[SMALL_ANSWER_BYTES];
    nng_msg *message = NULL;
    size_t bytes = 0;
    if (client_answer_encode(answer, small, sizeof small, &bytes) == STATUS_OK)
        return copy_of(small, bytes);
    if (client_answer_encode(answer, NULL, 0, &bytes) != STATUS_OK)
        return NULL;
    enum status status;
    if (atomic_load(&port->sending_bytes) + bytes > UNSENT_BYTES_MAX) {
        const struct client_answer refusal = refusal_of_large(answer->named);
        status = client_answer_encode(&refusal, small, sizeof small, &bytes);
        CHECK(status == STATUS_OK);
        return copy_of(small, bytes);
    }
    if (nng_msg_alloc(&message, bytes) != 0)
        return NULL;
    status = client_answer_encode(answer, nng_msg_body(message), bytes, &bytes);
    CHECK(status == STATUS_OK && bytes == nng_msg_len(message));
    return message;
}

static void answer_call(struct call *call, const struct client_answer *answer)
{
    struct client_answer styled = *answer;
    styled.named = call->named;
    nng_msg *message = encode(call->port, &styled);
    if (message != NULL) {
        send_message(call, message);
        return;
    }
    /* Out of memory for one answer: the client asks again after its own timeout. */
    log_warn("client_answer_lost", "reason=memory");
    call->serial++;
    start_receive(call);
}

void client_port_answer(struct client_port *port, uint64_t handle,
                        const struct client_answer *answer)
{
    uint32_t index = (uint32_t)handle;
    CHECK(index < port->call_count);
    struct call *call = &port->calls[index];
    CHECK(handle_of(call) == handle && atomic_load(&call->state) == CALL_SERVED);
    answer_call(call, answer);
}

/* A received frame: a request for the caller, or answered at once. */
static void take_frame(struct client_port *port, struct call *call, struct client_event *out_event)
{
    nng_msg *frame = nng_aio_get_msg(call->aio);
    call->pipe = nng_msg_get_pipe(frame);
    port->borrowed = frame;
    struct wire_error error;
    enum status status =
        client_request_decode(nng_msg_body(frame), nng_msg_len(frame), &out_event->request, &error);
    call->named = out_event->request.named;
    if (status == STATUS_OK) {
        atomic_store(&call->state, CALL_SERVED);
        out_event->kind = CLIENT_EVENT_REQUEST;
        out_event->handle = handle_of(call);
        return;
    }
    log_debug("client_frame_refused", "field=%s", error.field);
    out_event->kind = CLIENT_EVENT_BAD_FRAME;
    struct client_answer refusal = client_answer_refusal(&error, call->named);
    answer_call(call, &refusal);
}

/* The answer did not get out. */
static void give_up_answer(struct call *call)
{
    int error = nng_aio_result(call->aio);
    nng_msg_free(nng_aio_get_msg(call->aio));
    nng_aio_set_msg(call->aio, NULL);
    if (error == NNG_ETIMEDOUT) {
        /* It does not read, and its context is missed by others. Nothing is inbound on such a pipe,
         * so closing it is safe. */
        log_warn("client_too_slow", "pipe=%d", nng_pipe_id(call->pipe));
        nng_pipe_close(call->pipe);
    }
    start_receive(call);
}

/* Calls of a pipe that hung up, one at a time. */
static bool next_gone(struct client_port *port, struct client_event *out_event)
{
    for (;;) {
        for (; port->gone_index < port->call_count; port->gone_index++) {
            struct call *call = &port->calls[port->gone_index];
            if (atomic_load(&call->state) != CALL_SERVED || call->pipe.id != port->gone.id)
                continue;
            out_event->kind = CLIENT_EVENT_GONE;
            out_event->handle = handle_of(call);
            call->serial++;
            start_receive(call); /* drops the request that waited for an answer */
            return true;
        }
        if (!message_queue_pop(&port->hang_ups, &port->gone))
            return false;
        port->gone_index = 0;
    }
}

static bool next_frame(struct client_port *port, struct client_event *out_event)
{
    uint32_t index;
    while (message_queue_pop(&port->completions, &index)) {
        struct call *call = &port->calls[index];
        port->crowded_at = 0;
        if (atomic_load(&call->state) == CALL_SENDING) {
            give_up_answer(call);
        } else if (nng_aio_result(call->aio) != 0) {
            start_receive(call);
        } else {
            take_frame(port, call, out_event);
            return true;
        }
    }
    return false;
}

bool client_port_next(struct client_port *port, struct client_event *out_event)
{
    if (port->borrowed != NULL)
        nng_msg_free(port->borrowed);
    port->borrowed = NULL;
    bool found = next_frame(port, out_event);
    keep_some_idle(port);
    if (found)
        return true;
    if (next_gone(port, out_event))
        return true;
    uint32_t free_soon = 1 + atomic_load(&port->idle) + atomic_load(&port->sending);
    if (port->call_count == CLIENT_CALLS_MAX && free_soon <= CLIENT_CALLS_IDLE_MIN &&
        free_soon > port->crowded_at) {
        port->crowded_at = free_soon;
        out_event->kind = CLIENT_EVENT_CROWDED;
        return true;
    }
    return false;
}

uint32_t client_port_unsent(const struct client_port *port)
{
    return atomic_load(&port->sending);
}

enum status client_port_tick(struct client_port *port, uint64_t now_ns)
{
    uint32_t silenced = hangup_sweep_tick(&port->sweep, now_ns);
    if (silenced > 0)
        log_warn("hangups_silenced", "connections=%u", silenced);
    if (port->listeners == 0 || !listener_probe_tick(&port->probe, now_ns))
        return STATUS_OK;
    if (port->listeners == LISTENERS_MAX) {
        log_error("client_listener_lost", "replaced=%u", port->listeners - 1);
        return STATUS_CLOSED;
    }
    /* A second listener beside the old one, whose pipes live on. Never close the old one: that
     * would remove the path of the new one and end the pipes. */
    struct reason why;
    unlink(port->path);
    if (add_listener(port, reason_init(&why)) != STATUS_OK) {
        log_error("client_listener_lost", "reason=\"%s\"", why.storage);
        return STATUS_CLOSED;
    }
    log_warn("client_listener_replaced", "listeners=%u", port->listeners);
    return STATUS_OK;
}

uint64_t client_port_next_deadline_ns(const struct client_port *port)
{
    return port->listeners == 0 ? EVENT_LOOP_NO_DEADLINE : port->probe.deadline_ns;
}
