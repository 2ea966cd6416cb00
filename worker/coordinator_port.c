#include "worker/coordinator_port.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/message_queue.h"
#include "proto/shown_result.h"
#include "worker/fault_points.h"

#include <fcntl.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ORDERS_MAX = 8, /* an honest coordinator has two plans in flight */
    SENDERS = 4,
    FRAME_BYTES_MAX = LIMIT_WORKER_FRAME_BYTES + 64,
    SELDOM_MS = 24 * 3600 * 1000,
    PINNED_URL_BYTES = 48,
};

#define QUIET_NS             (500 * NS_PER_MS)
#define PIPE_END_PATIENCE_NS (5 * NS_PER_S)

struct sender {
    struct coordinator_port *port;
    nng_aio *aio;
    atomic_bool busy;
};

struct received {
    nng_msg *message;
    uint64_t received_ns;
};

struct coordinator_port {
    struct event_loop *loop; /* borrowed; not touched once `stopped` */
    int pinned;              /* owned; the file of the coordinator's socket */
    nng_socket socket;
    nng_aio *receiver;
    struct sender senders[SENDERS];
    struct message_queue orders; /* struct received */
    atomic_int waiting;          /* orders in the queue, for who spins; late by a moment */
    atomic_bool stopped, flooded;
    pthread_mutex_t mutex; /* guards pipes */
    pthread_cond_t pipe_ended;
    int pipes;
    uint8_t *buffer; /* [LIMIT_WORKER_FRAME_BYTES], owned */
    struct worker_order order;
};

/* ---- Threads of nng ---- */

static void order_received(void *context)
{
    struct coordinator_port *port = context;
    if (nng_aio_result(port->receiver) != 0)
        return; /* stopped by the undertaker */
    struct received received = {.message = nng_aio_get_msg(port->receiver),
                                .received_ns = clock_now_ns()};
    atomic_fetch_add(&port->waiting, 1);
    if (atomic_load(&port->stopped) || message_queue_push(&port->orders, &received) != STATUS_OK) {
        atomic_store(&port->flooded, true);
        nng_msg_free(received.message);
    }
    nng_recv_aio(port->socket, port->receiver);
}

static void report_sent(void *context)
{
    struct sender *sender = context;
    if (nng_aio_result(sender->aio) != 0) {
        nng_msg_free(nng_aio_get_msg(sender->aio));
        nng_aio_set_msg(sender->aio, NULL);
    }
    atomic_store(&sender->busy, false);
    if (!atomic_load(&sender->port->stopped))
        event_loop_wake(sender->port->loop); /* somebody may wait for the last report to leave */
}

static void pipe_changed(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct coordinator_port *port = context;
    (void)pipe;
    pthread_mutex_lock(&port->mutex);
    port->pipes += event == NNG_PIPE_EV_ADD_PRE ? 1 : -1;
    pthread_cond_signal(&port->pipe_ended);
    pthread_mutex_unlock(&port->mutex);
}

/* ---- Life ---- */

/* nng dials again on its own, and a successor of the coordinator may listen at the same path. So it
 * is not the path that is dialled but the very socket that is there now, by a descriptor of the
 * file. */
static enum status pin(struct coordinator_port *port, const char *url, char *out_url)
{
    static const char scheme[] = "ipc://";
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return STATUS_UNSUPPORTED;
    port->pinned = open(url + sizeof scheme - 1, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (port->pinned < 0)
        return STATUS_SYSTEM;
    snprintf(out_url, PINNED_URL_BYTES, "ipc:///proc/self/fd/%d", port->pinned);
    return STATUS_OK;
}

static int open_socket(struct coordinator_port *port, const char *url)
{
    nng_dialer dialer;
    int error = nng_pair0_open(&port->socket);
    if (error == 0)
        error = nng_socket_set_size(port->socket, NNG_OPT_RECVMAXSZ, FRAME_BYTES_MAX);
    if (error == 0)
        error = nng_socket_set_int(port->socket, NNG_OPT_SENDBUF, 0);
    if (error == 0)
        error = nng_pipe_notify(port->socket, NNG_PIPE_EV_ADD_PRE, pipe_changed, port);
    if (error == 0)
        error = nng_pipe_notify(port->socket, NNG_PIPE_EV_REM_POST, pipe_changed, port);
    if (error == 0)
        error = nng_aio_alloc(&port->receiver, order_received, port);
    for (uint32_t i = 0; i < SENDERS && error == 0; i++) {
        port->senders[i].port = port;
        error = nng_aio_alloc(&port->senders[i].aio, report_sent, &port->senders[i]);
    }
    if (error == 0)
        error = nng_dialer_create(&dialer, port->socket, url);
    /* nng dials again whenever its pipe ends; there is nobody to reach (see pin), so rarely. */
    if (error == 0)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, SELDOM_MS);
    if (error == 0)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, SELDOM_MS);
    if (error == 0)
        error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    if (error == 0) {
        nng_aio_set_timeout(port->receiver, NNG_DURATION_INFINITE);
        nng_recv_aio(port->socket, port->receiver);
    }
    return error;
}

static void free_port(struct coordinator_port *port)
{
    struct received received;
    while (port->orders.items != NULL && message_queue_pop(&port->orders, &received))
        nng_msg_free(received.message);
    message_queue_free(&port->orders);
    pthread_cond_destroy(&port->pipe_ended);
    pthread_mutex_destroy(&port->mutex);
    free(port->buffer);
    if (port->pinned >= 0)
        close(port->pinned);
    free(port);
}

static void close_socket(struct coordinator_port *port)
{
    if (port->receiver != NULL)
        nng_aio_stop(port->receiver);
    for (uint32_t i = 0; i < SENDERS; i++)
        if (port->senders[i].aio != NULL)
            nng_aio_stop(port->senders[i].aio);
    if (nng_socket_id(port->socket) > 0)
        nng_close(port->socket);
    nng_aio_free(port->receiver);
    for (uint32_t i = 0; i < SENDERS; i++)
        nng_aio_free(port->senders[i].aio);
}

enum status coordinator_port_open(struct event_loop *loop, const char *url,
                                  struct coordinator_port **out_port, struct text *why)
{
    struct coordinator_port *port = calloc(1, sizeof *port);
    if (port == NULL)
        return STATUS_OUT_OF_MEMORY;
    port->loop = loop;
    port->pinned = -1;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&port->mutex, NULL);
    pthread_cond_init(&port->pipe_ended, &clock);
    pthread_condattr_destroy(&clock);
    port->buffer = malloc(LIMIT_WORKER_FRAME_BYTES);
    enum status status = port->buffer != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = message_queue_init(&port->orders, ORDERS_MAX, sizeof(struct received), loop);
    char pinned_url[PINNED_URL_BYTES];
    if (status == STATUS_OK && (status = pin(port, url, pinned_url)) != STATUS_OK)
        text_set(why, "there is no socket at \"%s\"", url);
    if (status == STATUS_OK) {
        int error = open_socket(port, pinned_url);
        if (error != 0) {
            text_set(why, "cannot dial \"%s\": %s", url, nng_strerror(error));
            close_socket(port);
            status = STATUS_SYSTEM;
        }
    }
    if (status != STATUS_OK) {
        free_port(port);
        return status;
    }
    *out_port = port;
    return STATUS_OK;
}

/* Closes once the pipe has ended and nng has had time for what it still shakes hands with: a close
 * in the middle could hang its thread. A pipe whose end nng never reports keeps its socket: a close
 * could hang the thread that all sockets of the process share. */
static void *undertake(void *context)
{
    struct coordinator_port *port = context;
    uint64_t end_ns = clock_now_ns() + PIPE_END_PATIENCE_NS;
    struct timespec patience = {.tv_sec = (time_t)(end_ns / NS_PER_S),
                                .tv_nsec = (long)(end_ns % NS_PER_S)};
    const struct timespec quiet = {.tv_nsec = QUIET_NS};
    int waited = 0;
    pthread_mutex_lock(&port->mutex);
    while (port->pipes > 0 && waited == 0)
        waited = pthread_cond_timedwait(&port->pipe_ended, &port->mutex, &patience);
    pthread_mutex_unlock(&port->mutex);
    nanosleep(&quiet, NULL);
    pthread_mutex_lock(&port->mutex);
    bool ended = port->pipes == 0;
    pthread_mutex_unlock(&port->mutex);
    if (!ended)
        return NULL;
    close_socket(port);
    free_port(port);
    return NULL;
}

void coordinator_port_abandon(struct coordinator_port *port)
{
    if (port == NULL)
        return;
    atomic_store(&port->stopped, true);
    pthread_t thread;
    if (pthread_create(&thread, NULL, undertake, port) == 0)
        pthread_detach(thread);
}

/* ---- Messages ---- */

enum status coordinator_port_next(struct coordinator_port *port,
                                  struct coordinator_order *out_order, struct text *why)
{
    struct received received;
    struct wire_error error;
    if (!message_queue_pop(&port->orders, &received)) {
        if (!atomic_load(&port->flooded))
            return STATUS_AGAIN;
        text_set(why, "more orders came than can be in flight");
        return STATUS_BAD_MESSAGE;
    }
    atomic_fetch_sub(&port->waiting, 1);
    enum status status = worker_order_decode(nng_msg_body(received.message),
                                             nng_msg_len(received.message), &port->order, &error);
    nng_msg_free(received.message); /* an order is a copy: nothing in it borrows */
    if (status != STATUS_OK) {
        text_set(why, "%s", error.message);
        return status;
    }
    out_order->order = &port->order;
    out_order->received_ns = received.received_ns;
    return STATUS_OK;
}

void coordinator_port_spin(struct coordinator_port *port, uint64_t spin_ns)
{
    uint64_t end_ns = clock_now_ns() + spin_ns;
    while (atomic_load(&port->waiting) <= 0 && clock_now_ns() < end_ns) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

bool coordinator_port_waiting(const struct coordinator_port *port)
{
    return atomic_load(&port->waiting) > 0;
}

enum status coordinator_port_send(struct coordinator_port *port, const struct worker_report *report,
                                  struct worker_segment_writer *segment)
{
    struct sender *sender = NULL;
    for (uint32_t i = 0; i < SENDERS && sender == NULL; i++)
        if (!atomic_load(&port->senders[i].busy))
            sender = &port->senders[i];
    if (sender == NULL)
        return STATUS_FULL;
    size_t bytes;
    enum status status =
        worker_report_encode(report, port->buffer, LIMIT_WORKER_FRAME_BYTES, &bytes);
    CHECK(status == STATUS_OK); /* the limit fits every report */
    if (segment != NULL && report->type == WORKER_RESULT) {
        worker_segment_show_result(segment, report->result.step, clock_now_ns(), port->buffer,
                                   bytes);
        fault_point(FAULT_RESULT_SHOWN);
    }
    nng_msg *message;
    if (nng_msg_alloc(&message, 0) != 0)
        return STATUS_OUT_OF_MEMORY;
    if (nng_msg_append(message, port->buffer, bytes) != 0) {
        nng_msg_free(message);
        return STATUS_OUT_OF_MEMORY;
    }
    atomic_store(&sender->busy, true);
    nng_aio_set_timeout(sender->aio, NNG_DURATION_INFINITE);
    nng_aio_set_msg(sender->aio, message);
    nng_send_aio(port->socket, sender->aio);
    return STATUS_OK;
}

uint32_t coordinator_port_unsent(const struct coordinator_port *port)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SENDERS; i++)
        count += atomic_load(&port->senders[i].busy);
    return count;
}
