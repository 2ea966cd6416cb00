#include "coordinator/worker_port.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/message_queue.h"
#include "coordinator/undertaker.h"
#include "proto/segment_memory.h"

#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define END_POLL_NS (250 * NS_PER_MS)

enum {
    LINKS_MAX = LIMIT_ABANDONED_EPOCHS + 2,
    FRAMES_MAX = 64, /* reports not yet looked at; an honest worker has three */
    SENDERS = 4,     /* aios for plans: two in flight, two to spare */
    FRAME_BYTES_MAX = LIMIT_WORKER_FRAME_BYTES + 64,
    SOCKET_MODE = 0660,
};

enum link_state {
    LINK_ACTIVE = 1,
    LINK_ENDED, /* its process may live */
    LINK_BURIED /* with the undertaker */
};

struct sender {
    struct link *link;
    nng_aio *aio;
    atomic_bool busy;
};

/* A result that was taken out of the worker's segment. */
struct early_result {
    bool frame_due;
    struct shown_result shown;
};

struct link {
    struct grave grave; /* first: a grave is its link */
    struct worker_port *port;
    enum link_state state;
    uint64_t epoch, connection;
    pid_t pid;
    uid_t uid;
    char path[SOCKET_PATH_BYTES];
    char url[SOCKET_PATH_BYTES + 8];
    struct shm shm;
    struct segment_writer segment;
    nng_socket socket;
    nng_aio *receiver;
    struct sender senders[SENDERS];
    atomic_bool stopped; /* nothing is received any more */
    atomic_bool flooded; /* the queue was full */
    atomic_bool unsent;  /* a send failed */
    atomic_int pipes;    /* connected now */
    atomic_uint peer;    /* id of the worker's pipe; frames of others are dropped */
    bool flooded_told, unsent_told;
    struct early_result early[LIMIT_PLANS_IN_FLIGHT]; /* of step modulo their number */
    bool kill_pending;
    uint64_t kill_at_ns;
    bool process_known;
    struct worker_process process;
};

struct frame {
    struct link *link;
    nng_msg *message;
};

struct worker_port {
    struct event_loop *loop;               /* borrowed */
    const struct run_directory *directory; /* borrowed */
    struct link *links[LINKS_MAX];         /* owned, not yet buried; NULL = free */
    struct message_queue frames;           /* struct frame */
    struct undertaker undertaker;          /* owns what is buried */
    nng_msg *borrowed;
    struct worker_report report;
    struct wire_error error;
    struct link *gone[LINKS_MAX]; /* buried, not yet told */
    uint32_t gone_count;
    struct link *dying; /* its socket is closed; freed when no frame of it can be queued any more */
    uint64_t tick_ns;   /* when to look after the ended; EVENT_LOOP_NO_DEADLINE: none */
};

/* ---- Threads of nng ---- */

static void frame_received(void *context)
{
    struct link *link = context;
    if (nng_aio_result(link->receiver) != 0)
        return; /* stopped by the undertaker */
    struct frame frame = {.link = link, .message = nng_aio_get_msg(link->receiver)};
    bool wanted = !atomic_load(&link->stopped) &&
                  nng_msg_get_pipe(frame.message).id == atomic_load(&link->peer);
    if (!wanted) {
        nng_msg_free(frame.message);
    } else if (message_queue_push(&link->port->frames, &frame) != STATUS_OK) {
        nng_msg_free(frame.message);
        atomic_store(&link->flooded, true);
        event_loop_wake(link->port->loop);
    }
    /* Enqueued first, re-armed then: the other way round two frames may change places. */
    nng_recv_aio(link->socket, link->receiver);
}

static void plan_sent(void *context)
{
    struct sender *sender = context;
    int error = nng_aio_result(sender->aio);
    if (error != 0) {
        nng_msg_free(nng_aio_get_msg(sender->aio));
        nng_aio_set_msg(sender->aio, NULL);
        atomic_store(&sender->link->unsent, true);
        event_loop_wake(sender->link->port->loop);
    }
    atomic_store(&sender->busy, false);
}

static bool is_worker(const struct link *link, nng_pipe pipe)
{
    uint64_t pid = 0, uid = UINT64_MAX;
    nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &pid);
    nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid);
    return uid == link->uid && (link->pid == 0 || pid == (uint64_t)link->pid);
}

/* The worker is recognised, and a stranger closed, before the first frame can arrive: a pipe that
 * is closed while one arrives may hang the thread of nng that takes pipes apart. */
static void pipe_changed(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct link *link = context;
    unsigned nobody = 0, id = pipe.id;
    if (event != NNG_PIPE_EV_ADD_PRE) {
        atomic_compare_exchange_strong(&link->peer, &id, 0);
        atomic_fetch_sub(&link->pipes, 1);
        return;
    }
    atomic_fetch_add(&link->pipes, 1);
    if (is_worker(link, pipe))
        atomic_compare_exchange_strong(&link->peer, &nobody, id);
    else
        nng_pipe_close(pipe); /* somebody of the group */
}

/* ---- An epoch ---- */

static enum status open_socket(struct link *link)
{
    nng_listener listener;
    int error = nng_pair0_open(&link->socket);
    if (error == 0)
        error = nng_socket_set_size(link->socket, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    /* What a send buffer held would be handed to the next process that dials. */
    if (error == 0)
        error = nng_socket_set_int(link->socket, NNG_OPT_SENDBUF, 0);
    if (error == 0)
        error = nng_pipe_notify(link->socket, NNG_PIPE_EV_ADD_PRE, pipe_changed, link);
    if (error == 0)
        error = nng_pipe_notify(link->socket, NNG_PIPE_EV_REM_POST, pipe_changed, link);
    if (error == 0)
        error = nng_aio_alloc(&link->receiver, frame_received, link);
    for (uint32_t i = 0; i < SENDERS && error == 0; i++) {
        link->senders[i].link = link;
        error = nng_aio_alloc(&link->senders[i].aio, plan_sent, &link->senders[i]);
    }
    if (error == 0)
        error = nng_listener_create(&listener, link->socket, link->url);
    if (error == 0)
        error = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, SOCKET_MODE);
    if (error == 0)
        error = nng_listener_start(listener, 0);
    if (error != 0) {
        log_warn("epoch_socket_failed", "epoch=%" PRIu64 " reason=\"%s\"", link->epoch,
                 nng_strerror(error));
        return STATUS_SYSTEM;
    }
    nng_aio_set_timeout(link->receiver, NNG_DURATION_INFINITE);
    nng_recv_aio(link->socket, link->receiver);
    return STATUS_OK;
}

/* On the undertaker's thread, or where nobody ever connected. */
static void close_link(struct grave *grave)
{
    struct link *link = (struct link *)grave;
    if (link->receiver != NULL)
        nng_aio_stop(link->receiver);
    for (uint32_t i = 0; i < SENDERS; i++)
        if (link->senders[i].aio != NULL)
            nng_aio_stop(link->senders[i].aio);
    if (nng_socket_id(link->socket) > 0)
        nng_close(link->socket);
    nng_aio_free(link->receiver);
    for (uint32_t i = 0; i < SENDERS; i++)
        nng_aio_free(link->senders[i].aio);
}

static bool is_quiet(struct grave *grave)
{
    const struct link *link = (const struct link *)grave;
    return atomic_load(&link->pipes) == 0;
}

static void free_link(struct link *link)
{
    shm_close(&link->shm);
    if (link->process_known)
        worker_process_close(&link->process);
    free(link);
}

enum status worker_port_open(struct event_loop *loop, const struct run_directory *directory,
                             struct worker_port **out_port, struct text *why)
{
    struct worker_port *port = calloc(1, sizeof *port);
    enum status status = port != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = message_queue_init(&port->frames, FRAMES_MAX, sizeof(struct frame), loop);
    if (status == STATUS_OK)
        status = undertaker_init(&port->undertaker, loop);
    if (status != STATUS_OK) {
        text_set(why, "out of memory for the worker link");
        return status;
    }
    port->loop = loop;
    port->directory = directory;
    port->tick_ns = EVENT_LOOP_NO_DEADLINE;
    *out_port = port;
    return STATUS_OK;
}

static struct link *find_active(const struct worker_port *port, uint64_t epoch)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (port->links[i] != NULL && port->links[i]->state == LINK_ACTIVE &&
            port->links[i]->epoch == epoch)
            return port->links[i];
    return NULL;
}

enum status worker_port_start(struct worker_port *port, const struct epoch_terms *terms,
                              struct epoch_link *out_link, struct text *why)
{
    uint32_t place = 0;
    while (place < LINKS_MAX && port->links[place] != NULL)
        place++;
    if (place == LINKS_MAX) {
        text_set(why, "%d epochs wait for the end of their processes", LINKS_MAX);
        return STATUS_FULL;
    }
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return STATUS_OUT_OF_MEMORY;
    link->grave = (struct grave){.is_quiet = is_quiet, .close = close_link};
    link->port = port;
    link->state = LINK_ACTIVE;
    link->epoch = terms->epoch;
    link->connection = terms->connection;
    link->pid = terms->pid;
    link->uid = terms->uid;
    run_directory_worker_path(port->directory, terms->epoch, link->path);
    snprintf(link->url, sizeof link->url, "ipc://%s", link->path);
    enum status status = coordinator_segment_create(&terms->extents, &terms->identity, &link->shm,
                                                    &link->segment, why);
    if (status == STATUS_OK && (status = open_socket(link)) != STATUS_OK) {
        text_set(why, "cannot listen at \"%s\"", link->path);
        unlink(link->path);
        close_link(&link->grave);
    }
    if (status != STATUS_OK) {
        free_link(link);
        return status;
    }
    port->links[place] = link;
    *out_link = (struct epoch_link){.epoch = link->epoch,
                                    .connection = link->connection,
                                    .url = link->url,
                                    .segment_descriptor = link->shm.descriptor,
                                    .segment = &link->segment};
    return STATUS_OK;
}

enum status worker_port_send(struct worker_port *port, uint64_t epoch, const struct plan *plan)
{
    struct link *link = find_active(port, epoch);
    if (link == NULL)
        return STATUS_CLOSED;
    struct sender *sender = NULL;
    for (uint32_t i = 0; i < SENDERS && sender == NULL; i++)
        if (!atomic_load(&link->senders[i].busy))
            sender = &link->senders[i];
    if (sender == NULL)
        return STATUS_FULL;
    nng_msg *message;
    size_t bytes = 0;
    if (nng_msg_alloc(&message, plan_encoded_bytes_max(plan->row_count)) != 0)
        return STATUS_OUT_OF_MEMORY;
    enum status status = plan_encode(plan, nng_msg_body(message), nng_msg_len(message), &bytes);
    CHECK(status == STATUS_OK && bytes <= nng_msg_len(message));
    nng_msg_chop(message, nng_msg_len(message) - bytes);
    atomic_store(&sender->busy, true);
    nng_aio_set_msg(sender->aio, message);
    nng_send_aio(link->socket, sender->aio);
    return STATUS_OK;
}

void worker_port_fence(struct worker_port *port, uint64_t epoch)
{
    struct link *link = find_active(port, epoch);
    if (link != NULL)
        segment_fence(&link->segment);
}

void worker_port_end(struct worker_port *port, const struct epoch_end *end, uint64_t now_ns)
{
    struct link *link = find_active(port, end->epoch);
    if (link == NULL) {
        struct worker_process process = end->process;
        if (end->process_known)
            worker_process_close(&process);
        return;
    }
    shm_close(&link->shm);
    atomic_store(&link->stopped, true);
    unlink(link->path);
    link->state = LINK_ENDED;
    link->process = end->process;
    link->process_known = end->process_known;
    link->kill_pending = end->kill && end->process_known;
    link->kill_at_ns = end->kill_at_ns;
    port->tick_ns = now_ns;
}

/* ---- What came ---- */

static void decode(struct worker_port *port, const struct link *link, const uint8_t *bytes,
                   size_t length, struct worker_event *out_event)
{
    out_event->epoch = link->epoch;
    out_event->connection = link->connection;
    out_event->kind = WORKER_EVENT_REPORT;
    out_event->report = &port->report;
    if (worker_report_decode(bytes, length, &port->report, &port->error) != STATUS_OK) {
        out_event->kind = WORKER_EVENT_NONSENSE;
        out_event->why = port->error.message;
    }
}

bool worker_port_shown(struct worker_port *port, uint64_t epoch,
                       const struct worker_segment_reader *segment, uint64_t step,
                       struct worker_event *out_event)
{
    struct link *link = find_active(port, epoch);
    if (link == NULL)
        return false;
    struct early_result *early = &link->early[step % LIMIT_PLANS_IN_FLIGHT];
    if (early->frame_due || early->shown.step == step ||
        worker_segment_read_result(segment, step, &early->shown) != STATUS_OK)
        return false;
    early->frame_due = true;
    *out_event = (struct worker_event){0};
    decode(port, link, early->shown.frame, early->shown.bytes, out_event);
    const struct worker_report *report = &port->report;
    if (out_event->kind == WORKER_EVENT_REPORT &&
        (report->type != WORKER_RESULT || report->result.step != step)) {
        out_event->kind = WORKER_EVENT_NONSENSE;
        out_event->why = "what is shown as a result is none of this step";
    }
    return true;
}

/* A frame whose bytes were taken before it came. */
static bool is_known(struct link *link, nng_msg *message)
{
    for (uint32_t i = 0; i < LIMIT_PLANS_IN_FLIGHT; i++) {
        struct early_result *early = &link->early[i];
        if (!early->frame_due || early->shown.bytes != nng_msg_len(message) ||
            memcmp(early->shown.frame, nng_msg_body(message), early->shown.bytes) != 0)
            continue;
        early->frame_due = false;
        return true;
    }
    return false;
}

static bool next_frame(struct worker_port *port, struct worker_event *out_event)
{
    struct frame frame;
    while (message_queue_pop(&port->frames, &frame)) {
        if (frame.link->state != LINK_ACTIVE || is_known(frame.link, frame.message)) {
            nng_msg_free(frame.message);
            continue;
        }
        port->borrowed = frame.message;
        decode(port, frame.link, nng_msg_body(frame.message), nng_msg_len(frame.message),
               out_event);
        return true;
    }
    return false;
}

/* What the callbacks could only mark. */
static bool next_mark(struct worker_port *port, struct worker_event *out_event)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        struct link *link = port->links[i];
        if (link == NULL || link->state != LINK_ACTIVE)
            continue;
        bool flooded = atomic_load(&link->flooded) && !link->flooded_told;
        bool unsent = atomic_load(&link->unsent) && !link->unsent_told;
        if (!flooded && !unsent)
            continue;
        out_event->epoch = link->epoch;
        out_event->connection = link->connection;
        out_event->kind = flooded ? WORKER_EVENT_NONSENSE : WORKER_EVENT_UNSENT;
        out_event->why = "more frames than plans";
        link->flooded_told |= flooded;
        link->unsent_told |= !flooded;
        return true;
    }
    return false;
}

/* The process of an ended epoch is gone. */
static bool next_gone(struct worker_port *port, struct worker_event *out_event)
{
    if (port->gone_count == 0)
        return false;
    const struct link *link = port->gone[--port->gone_count];
    out_event->kind = WORKER_EVENT_GONE;
    out_event->epoch = link->epoch;
    out_event->connection = link->connection;
    return true;
}

static void forget_dying(struct worker_port *port)
{
    struct link *link = port->dying;
    for (uint32_t i = 0; i < port->gone_count; i++)
        if (port->gone[i] == link)
            return; /* told first */
    free_link(link);
    port->dying = NULL;
}

bool worker_port_next(struct worker_port *port, struct worker_event *out_event)
{
    if (port->borrowed != NULL)
        nng_msg_free(port->borrowed);
    port->borrowed = NULL;
    *out_event = (struct worker_event){0};
    /* Taken before the frames are looked at: what is queued of this link came earlier and is
     * dropped first. */
    if (port->dying == NULL)
        port->dying = (struct link *)undertaker_next_closed(&port->undertaker);
    if (next_frame(port, out_event) || next_mark(port, out_event))
        return true;
    if (port->dying != NULL)
        forget_dying(port);
    return next_gone(port, out_event);
}

/* ---- The ended ---- */

static void look_after(struct worker_port *port, uint32_t place, uint64_t now_ns)
{
    struct link *link = port->links[place];
    bool ended = link->process_known && worker_process_ended(&link->process);
    if (link->kill_pending && !ended && now_ns >= link->kill_at_ns) {
        link->kill_pending = false;
        if (!worker_process_kill(&link->process))
            log_warn("worker_unreaped", "epoch=%" PRIu64 " pid=%ld", link->epoch, (long)link->pid);
    }
    if (!ended || port->gone_count == LINKS_MAX || undertaker_is_busy(&port->undertaker))
        return;
    link->state = LINK_BURIED;
    port->links[place] = NULL;
    port->gone[port->gone_count++] = link;
    undertaker_bury(&port->undertaker, &link->grave, now_ns);
}

void worker_port_tick(struct worker_port *port, uint64_t now_ns)
{
    undertaker_tick(&port->undertaker, now_ns);
    if (now_ns < port->tick_ns)
        return;
    port->tick_ns = EVENT_LOOP_NO_DEADLINE;
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        if (port->links[i] == NULL || port->links[i]->state != LINK_ENDED)
            continue;
        port->tick_ns = now_ns + END_POLL_NS;
        look_after(port, i, now_ns);
    }
}

uint64_t worker_port_next_deadline_ns(const struct worker_port *port)
{
    uint64_t burial_ns = undertaker_next_deadline_ns(&port->undertaker);
    if (port->gone_count > 0)
        return 0;
    return port->tick_ns < burial_ns ? port->tick_ns : burial_ns;
}
