#include "client/connection.h"

#include "client/error.h"
#include "common/check.h"
#include "common/status.h"
#include "proto/limits.h"

#include <nng/protocol/reqrep0/req.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSTEM_PLACE "/run/tandem"

/* A coordinator that restarts is found again at once, one that is away costs two tries a second. */
enum { RECONNECT_MS_MIN = 10, RECONNECT_MS_MAX = 500 };

/* RESENDTIME -1: nng would send a question again after 60 s; when to repeat is ours to decide. */
static int socket_open(nng_socket *out_socket)
{
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    int result = nng_req0_open(&socket);
    if (result != 0)
        return result;
    result = nng_socket_set_ms(socket, NNG_OPT_REQ_RESENDTIME, -1);
    if (result == 0)
        result = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, LIMIT_CLIENT_ANSWER_BYTES);
    if (result == 0)
        result = nng_socket_set_ms(socket, NNG_OPT_RECONNMINT, RECONNECT_MS_MIN);
    if (result == 0)
        result = nng_socket_set_ms(socket, NNG_OPT_RECONNMAXT, RECONNECT_MS_MAX);
    if (result == 0)
        *out_socket = socket;
    else
        nng_close(socket);
    return result;
}

/* 0 or the error of nng. Waits for the handshake only: a socket file without a process fails at
 * once. */
static int dial(nng_socket socket, const struct run_directory *directory)
{
    char path[SOCKET_PATH_BYTES];
    char url[SOCKET_PATH_BYTES + sizeof "ipc://"];
    run_directory_path(directory, RUN_CLIENT_NAME, path);
    (void)snprintf(url, sizeof url, "ipc://%s", path);
    return nng_dial(socket, url, NULL, 0);
}

/* One place where a coordinator may be. TANDEM_OK leaves the socket open in `connection`; else
 * `why` tells what was found instead. */
static enum tandem_result try_place(struct connection *connection, const char *place,
                                    struct text *why)
{
    struct run_directory directory;
    if (run_directory_resolve(&directory, place, why) != STATUS_OK)
        return TANDEM_INVALID;
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    int result = socket_open(&socket);
    if (result != 0) {
        text_set(why, "cannot open a socket: %s", nng_strerror(result));
        return TANDEM_NO_MEMORY;
    }
    result = dial(socket, &directory);
    if (result == 0) {
        connection->socket = socket;
        connection->directory = directory;
        return TANDEM_OK;
    }
    nng_close(socket);
    if (result == NNG_EPERM) {
        text_set(why, "the coordinator in %s belongs to another user", directory.path);
        return TANDEM_NOT_PERMITTED;
    }
    if (result == NNG_ENOENT || result == NNG_ECONNREFUSED) {
        text_set(why, "%s %s",
                 access(directory.path, F_OK) == 0 ? "no coordinator runs in"
                                                   : "there is no directory",
                 directory.path);
        return TANDEM_UNAVAILABLE;
    }
    text_set(why, "the coordinator in %s does not answer (%s): it hangs or is stopped",
             directory.path, nng_strerror(result));
    return TANDEM_TIMEOUT;
}

static enum tandem_result open_named(struct connection *connection, const char *place,
                                     struct tandem_error *error)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    enum tandem_result result = try_place(connection, place, why);
    if (result == TANDEM_UNAVAILABLE)
        text_format(why, ": start tandem-coordinator there, or name another run directory");
    return result == TANDEM_OK ? TANDEM_OK : error_set(error, result, "run_dir", "%s", why->bytes);
}

static enum tandem_result open_standard(struct connection *connection, struct tandem_error *error)
{
    struct reason first;
    struct reason second;
    enum tandem_result runtime_result = TANDEM_UNAVAILABLE;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    (void)reason_init(&first);
    if (runtime != NULL && runtime[0] != '\0') {
        char place[PATH_MAX];
        (void)snprintf(place, sizeof place, "%s/tandem", runtime);
        runtime_result = try_place(connection, place, &first.text);
        if (runtime_result == TANDEM_OK)
            return TANDEM_OK;
        if (runtime_result == TANDEM_TIMEOUT) /* it is there: another one would be the wrong one */
            return error_set(error, runtime_result, "run_dir", "%s", first.text.bytes);
        text_format(&first.text, ", ");
    }
    enum tandem_result result = try_place(connection, SYSTEM_PLACE, reason_init(&second));
    if (result == TANDEM_OK)
        return TANDEM_OK;
    /* Of two reasons the one that the user can act upon. */
    if (runtime_result == TANDEM_NOT_PERMITTED || runtime_result == TANDEM_INVALID)
        result = runtime_result;
    return error_set(error, result, "run_dir", "%s%s%s", first.text.bytes, second.text.bytes,
                     result == TANDEM_UNAVAILABLE
                         ? ": start tandem-coordinator, or name its run directory"
                         : "");
}

enum tandem_result connection_open(struct connection *connection, const char *run_dir,
                                   struct tandem_error *error)
{
    const char *named = run_dir != NULL ? run_dir : getenv("TANDEM_RUN_DIR");
    if (named != NULL && named[0] != '\0')
        return open_named(connection, named, error);
    return open_standard(connection, error);
}

void connection_close(struct connection *connection)
{
    nng_close(connection->socket);
}

/* Both halves of a question run on one context and one aio, one after the other. */
static enum connection_outcome send_and_receive(nng_ctx ctx, nng_aio *aio, nng_msg *question,
                                                const uint32_t times_ms[2], nng_msg **out_answer)
{
    nng_aio_set_msg(aio, question);
    nng_aio_set_timeout(aio, (nng_duration)times_ms[0]);
    nng_ctx_send(ctx, aio);
    nng_aio_wait(aio);
    if (nng_aio_result(aio) != 0) {
        nng_msg_free(question); /* nng owns a message only after a successful send */
        return nng_aio_result(aio) == NNG_ENOMEM ? CONNECTION_EXHAUSTED : CONNECTION_NOT_SENT;
    }
    nng_aio_set_timeout(aio, (nng_duration)times_ms[1]);
    nng_ctx_recv(ctx, aio);
    nng_aio_wait(aio);
    switch (nng_aio_result(aio)) {
    case 0:
        *out_answer = nng_aio_get_msg(aio);
        return CONNECTION_ANSWERED;
    case NNG_ETIMEDOUT:
        return CONNECTION_SILENT;
    case NNG_ENOMEM:
        return CONNECTION_EXHAUSTED;
    default: /* NNG_ECONNRESET; NNG_ECLOSED cannot be: the caller holds the connection open */
        return CONNECTION_CUT;
    }
}

enum connection_outcome connection_try(const struct connection *connection, nng_msg *question,
                                       uint32_t send_ms, uint32_t answer_ms, nng_msg **out_answer)
{
    CHECK(send_ms > 0 && answer_ms > 0); /* 0 would mean "do not wait" to nng */
    nng_ctx ctx = NNG_CTX_INITIALIZER;
    nng_aio *aio = NULL;
    if (nng_ctx_open(&ctx, connection->socket) != 0) {
        nng_msg_free(question);
        return CONNECTION_EXHAUSTED;
    }
    if (nng_aio_alloc(&aio, NULL, NULL) != 0) {
        nng_msg_free(question);
        nng_ctx_close(ctx);
        return CONNECTION_EXHAUSTED;
    }
    const uint32_t times_ms[2] = {send_ms, answer_ms};
    enum connection_outcome outcome = send_and_receive(ctx, aio, question, times_ms, out_answer);
    nng_aio_free(aio);
    nng_ctx_close(ctx);
    return outcome;
}
