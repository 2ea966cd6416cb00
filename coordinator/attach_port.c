#include "coordinator/attach_port.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/packet_socket.h"
#include "proto/segment_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define HELLO_PATIENCE_NS (5 * NS_PER_S)
#define ACCEPT_PAUSE_NS   (200 * NS_PER_MS) /* when there are no descriptors left */

/* Who may not attach gets few of the places: it hears why, and keeps no worker away. */
enum { SOCKET_MODE = 0660, STRANGERS_MAX = 4 };

enum connection_state {
    CONNECTION_NONE = 0,
    CONNECTION_GREETING, /* no hello yet: its end is nobody's business */
    CONNECTION_KNOWN,    /* its hello was handed out */
    CONNECTION_LOST,     /* its end was seen and has to be told */
    CONNECTION_TOLD,     /* kept until attach_port_release, for its process */
};

struct connection {
    struct attach_port *port;
    uint64_t number; /* never used again */
    enum connection_state state;
    bool readable;
    int descriptor;
    bool process_watched;
    struct worker_process process;
    bool user_allowed;
    uint64_t deadline_ns; /* for the hello */
    struct shm shm;       /* the worker's segment */
    struct worker_segment_reader segment;
};

struct attach_port {
    struct event_loop *loop; /* borrowed */
    const char *path;        /* borrowed */
    const struct worker_users *users;
    int listener;       /* -1: stopped */
    uint64_t resume_ns; /* accepting pauses until then; 0 = it does not */
    uint64_t next_number;
    uint8_t packet[LIMIT_ATTACH_BYTES];
    struct connection connections[ATTACH_CONNECTIONS_MAX];
};

static struct connection *find(const struct attach_port *port, uint64_t number)
{
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++) {
        const struct connection *connection = &port->connections[i];
        if (connection->state != CONNECTION_NONE && connection->number == number)
            return (struct connection *)(uintptr_t)connection;
    }
    return NULL;
}

static void stop_watching(struct connection *connection)
{
    struct event_loop *loop = connection->port->loop;
    if (connection->descriptor >= 0) {
        event_loop_remove(loop, connection->descriptor);
        close(connection->descriptor);
        connection->descriptor = -1;
    }
    if (connection->process_watched)
        event_loop_remove(loop, connection->process.descriptor);
    connection->process_watched = false;
    connection->readable = false;
}

static void forget(struct connection *connection)
{
    stop_watching(connection);
    worker_process_close(&connection->process);
    shm_close(&connection->shm);
    *connection = (struct connection){.descriptor = -1};
}

static void connection_readable(void *context, uint32_t events)
{
    struct connection *connection = context;
    (void)events;
    connection->readable = true; /* attach_port_next reads */
}

static void note_lost(struct connection *connection)
{
    stop_watching(connection);
    if (connection->state == CONNECTION_GREETING)
        forget(connection);
    else if (connection->state == CONNECTION_KNOWN)
        connection->state = CONNECTION_LOST;
}

static void process_ended(void *context, uint32_t events)
{
    (void)events;
    note_lost(context);
}

static bool user_allowed(const struct attach_port *port, uid_t uid)
{
    for (uint32_t i = 0; i < port->users->count; i++)
        if (port->users->uids[i] == uid)
            return true;
    return false;
}

/* A free place for a peer, or NULL. */
static struct connection *find_place(struct attach_port *port, bool allowed)
{
    struct connection *place = NULL;
    uint32_t strangers = 0;
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++) {
        struct connection *connection = &port->connections[i];
        if (connection->state == CONNECTION_NONE)
            place = connection;
        else
            strangers += !connection->user_allowed;
    }
    return allowed || strangers < STRANGERS_MAX ? place : NULL;
}

static void admit(struct attach_port *port, int descriptor, const struct peer_identity *peer)
{
    bool allowed = user_allowed(port, peer->uid);
    struct connection *connection = find_place(port, allowed);
    if (connection == NULL) {
        log_debug("attach_crowded", "pid=%ld", (long)peer->pid);
        close(descriptor); /* the worker tries again */
        return;
    }
    *connection = (struct connection){.port = port,
                                      .number = ++port->next_number,
                                      .state = CONNECTION_GREETING,
                                      .descriptor = descriptor,
                                      .user_allowed = allowed,
                                      .deadline_ns = clock_now_ns() + HELLO_PATIENCE_NS};
    worker_process_open(&connection->process, peer);
    if (event_loop_add(port->loop, descriptor, EPOLLIN, connection_readable, connection) !=
        STATUS_OK) {
        close(descriptor);
        connection->descriptor = -1;
        forget(connection);
        return;
    }
    int process = connection->process.descriptor;
    if (process >= 0)
        connection->process_watched =
            event_loop_add(port->loop, process, EPOLLIN, process_ended, connection) == STATUS_OK;
}

static void listener_readable(void *context, uint32_t events)
{
    struct attach_port *port = context;
    struct peer_identity peer;
    int descriptor;
    (void)events;
    /* One at a time: the loop comes back while more are waiting. */
    enum status status = packet_socket_accept(port->listener, &descriptor, &peer);
    if (status == STATUS_OK) {
        admit(port, descriptor, &peer);
    } else if (status == STATUS_SYSTEM) {
        /* Who waits keeps the listener readable: without a pause the loop would spin. */
        log_warn("attach_paused", "errno=%d", errno);
        event_loop_remove(port->loop, port->listener);
        port->resume_ns = clock_now_ns() + ACCEPT_PAUSE_NS;
    }
}

enum status attach_port_open(struct event_loop *loop, const char *path,
                             const struct worker_users *users, struct attach_port **out_port,
                             struct text *why)
{
    struct attach_port *port = calloc(1, sizeof *port);
    if (port == NULL)
        return STATUS_OUT_OF_MEMORY;
    port->loop = loop;
    port->path = path;
    port->users = users;
    port->listener = -1;
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++)
        port->connections[i].descriptor = -1;
    enum status status = packet_socket_listen(path, SOCKET_MODE, &port->listener, why);
    if (status == STATUS_OK)
        status = event_loop_add(loop, port->listener, EPOLLIN, listener_readable, port);
    if (status != STATUS_OK) {
        if (port->listener >= 0)
            close(port->listener);
        free(port);
        return status;
    }
    *out_port = port;
    return STATUS_OK;
}

void attach_port_stop_listening(struct attach_port *port)
{
    if (port->listener < 0)
        return;
    if (port->resume_ns == 0)
        event_loop_remove(port->loop, port->listener);
    close(port->listener);
    port->listener = -1;
    port->resume_ns = 0;
    unlink(port->path);
}

void attach_port_close(struct attach_port *port)
{
    attach_port_stop_listening(port);
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++)
        if (port->connections[i].state != CONNECTION_NONE)
            forget(&port->connections[i]);
    free(port);
}

static void refuse(struct attach_port *port, struct connection *connection,
                   enum attach_refusal reason, const char *message)
{
    log_warn("worker_refused", "connection=%" PRIu64 " pid=%ld reason=%s", connection->number,
             (long)connection->process.pid, wire_enum_name(&attach_refusal_enum, reason));
    struct attach_answer answer = {.type = ATTACH_ANSWER_REFUSED};
    answer.refused.reason = reason;
    answer.refused.message = wire_text_of(message);
    attach_port_answer(port, connection->number, &answer, -1);
}

/* The packet is in port->packet. True: out_event is a hello. */
static bool take_hello(struct connection *connection, size_t length, int passed,
                       struct attach_event *out_event)
{
    struct attach_port *port = connection->port;
    struct wire_error error;
    struct reason why;
    reason_init(&why);
    if (attach_hello_decode(port->packet, length, &out_event->hello, &error) != STATUS_OK) {
        if (passed >= 0)
            close(passed);
        refuse(port, connection, ATTACH_REFUSAL_MALFORMED, error.message);
        return false;
    }
    enum status status = STATUS_BAD_MESSAGE;
    text_set(&why.text, "hello came without a segment");
    if (passed >= 0)
        status = worker_segment_accept(passed, &connection->shm, &connection->segment, &why.text);
    /* Another layout is also another version: the core says which is which, from the hello. */
    if (status != STATUS_OK) {
        if (passed >= 0)
            close(passed);
        refuse(port, connection,
               status == STATUS_MISMATCH ? ATTACH_REFUSAL_VERSION : ATTACH_REFUSAL_SEGMENT,
               why.storage);
        return false;
    }
    connection->state = CONNECTION_KNOWN;
    out_event->kind = ATTACH_EVENT_HELLO;
    out_event->connection = connection->number;
    out_event->process = &connection->process;
    out_event->user_allowed = connection->user_allowed;
    return true;
}

/* True: out_event is set. */
static bool read_connection(struct connection *connection, struct attach_event *out_event)
{
    size_t length;
    int passed;
    connection->readable = false;
    enum status status = packet_socket_receive(connection->descriptor, connection->port->packet,
                                               sizeof connection->port->packet, &length, &passed);
    if (status == STATUS_AGAIN)
        return false;
    if (status == STATUS_OK && connection->state == CONNECTION_GREETING)
        return take_hello(connection, length, passed, out_event);
    if (status == STATUS_OK && passed >= 0)
        close(passed);
    if (status == STATUS_OK)
        return false; /* a worker has nothing more to say here; later versions may */
    if (status == STATUS_TOO_LARGE || status == STATUS_BAD_MESSAGE)
        refuse(connection->port, connection, ATTACH_REFUSAL_MALFORMED, status_text(status));
    else
        note_lost(connection);
    return false;
}

bool attach_port_next(struct attach_port *port, struct attach_event *out_event)
{
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++) {
        struct connection *connection = &port->connections[i];
        if (connection->readable && read_connection(connection, out_event))
            return true;
        if (connection->state == CONNECTION_LOST) {
            connection->state = CONNECTION_TOLD;
            out_event->kind = ATTACH_EVENT_LOST;
            out_event->connection = connection->number;
            out_event->process = &connection->process;
            return true;
        }
    }
    return false;
}

void attach_port_answer(struct attach_port *port, uint64_t number,
                        const struct attach_answer *answer, int passed)
{
    struct connection *connection = find(port, number);
    if (connection == NULL || connection->descriptor < 0)
        return; /* lost meanwhile, which is told in its own event */
    uint8_t packet[LIMIT_ATTACH_BYTES];
    size_t length;
    enum status status = attach_answer_encode(answer, packet, sizeof packet, &length);
    CHECK(status == STATUS_OK);
    status = packet_socket_send(connection->descriptor, packet, length, passed);
    if (answer->type == ATTACH_ANSWER_REFUSED)
        forget(connection);
    else if (status != STATUS_OK)
        note_lost(connection);
}

const struct worker_segment_reader *attach_port_segment(const struct attach_port *port,
                                                        uint64_t number)
{
    const struct connection *connection = find(port, number);
    return connection != NULL && connection->shm.base != NULL ? &connection->segment : NULL;
}

const struct worker_process *attach_port_process(const struct attach_port *port, uint64_t number)
{
    const struct connection *connection = find(port, number);
    return connection != NULL ? &connection->process : NULL;
}

bool attach_port_release(struct attach_port *port, uint64_t number,
                         struct worker_process *out_process)
{
    struct connection *connection = find(port, number);
    if (connection == NULL)
        return false;
    stop_watching(connection);
    *out_process = connection->process;
    connection->process.descriptor = -1; /* handed over */
    forget(connection);
    return true;
}

static void resume_accepting(struct attach_port *port, uint64_t now_ns)
{
    if (port->resume_ns == 0 || now_ns < port->resume_ns)
        return;
    enum status status =
        event_loop_add(port->loop, port->listener, EPOLLIN, listener_readable, port);
    port->resume_ns = status == STATUS_OK ? 0 : now_ns + ACCEPT_PAUSE_NS;
}

void attach_port_tick(struct attach_port *port, uint64_t now_ns)
{
    resume_accepting(port, now_ns);
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++) {
        struct connection *connection = &port->connections[i];
        if (connection->state == CONNECTION_GREETING && now_ns >= connection->deadline_ns)
            refuse(port, connection, ATTACH_REFUSAL_MALFORMED, "no hello came in 5 s");
    }
}

uint64_t attach_port_next_deadline_ns(const struct attach_port *port)
{
    uint64_t earliest_ns = port->resume_ns != 0 ? port->resume_ns : EVENT_LOOP_NO_DEADLINE;
    for (uint32_t i = 0; i < ATTACH_CONNECTIONS_MAX; i++)
        if (port->connections[i].state == CONNECTION_GREETING &&
            port->connections[i].deadline_ns < earliest_ns)
            earliest_ns = port->connections[i].deadline_ns;
    return earliest_ns;
}
