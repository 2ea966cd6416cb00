/* A coordinator that follows a script: one nng REP socket on one thread, so that the tests of the
 * client library can see every question and choose every answer, cut and silence. */
#ifndef TANDEM_TESTS_SUPPORT_FAKE_COORDINATOR_H
#define TANDEM_TESTS_SUPPORT_FAKE_COORDINATOR_H

#include "common/check.h"
#include "proto/client_messages.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum fake_action {
    FAKE_ANSWER = 1, /* with `answer` */
    FAKE_BYTES,      /* with these bytes */
    FAKE_SILENCE,    /* never answer this question */
    FAKE_CUT,        /* close the connection that it came on */
};

struct fake_step {
    enum fake_action action;
    struct client_answer answer;
    const char *bytes;
    size_t length;
};

enum { FAKE_SEEN_MAX = 512 };

struct fake {
    char directory[64];
    char path[96];
    nng_socket socket;
    pthread_t thread;
    const struct fake_step *steps; /* the last one repeats */
    size_t step_count;
    pthread_mutex_t mutex;
    size_t seen_count;
    struct client_request seen[FAKE_SEEN_MAX]; /* borrow from `frames` */
    nng_msg *frames[FAKE_SEEN_MAX];
};

static inline void fake_reply(struct fake *fake, const struct fake_step *step)
{
    nng_msg *message = NULL;
    size_t bytes = step->length;
    if (step->action == FAKE_ANSWER) {
        int encoded = (int)client_answer_encode(&step->answer, NULL, 0, &bytes);
        CHECK(encoded == STATUS_OK);
    }
    int result = nng_msg_alloc(&message, bytes);
    CHECK(result == 0);
    if (step->action == FAKE_ANSWER) {
        int encoded =
            (int)client_answer_encode(&step->answer, nng_msg_body(message), bytes, &bytes);
        CHECK(encoded == STATUS_OK);
    } else {
        memcpy(nng_msg_body(message), step->bytes, bytes);
    }
    if (nng_sendmsg(fake->socket, message, 0) != 0)
        nng_msg_free(message);
}

static inline void *fake_serve(void *context)
{
    struct fake *fake = context;
    nng_msg *message = NULL;
    while (nng_recvmsg(fake->socket, &message, 0) == 0) {
        struct wire_error why;
        (void)pthread_mutex_lock(&fake->mutex);
        const size_t i = fake->seen_count++;
        CHECK(i < FAKE_SEEN_MAX);
        fake->frames[i] = message;
        int decoded = (int)client_request_decode(nng_msg_body(message), nng_msg_len(message),
                                                 &fake->seen[i], &why);
        const struct fake_step *step =
            &fake->steps[i < fake->step_count ? i : fake->step_count - 1];
        (void)pthread_mutex_unlock(&fake->mutex);
        if (decoded != STATUS_OK)
            (void)fprintf(stderr, "the client sent what it must not: %s\n", why.message);
        CHECK(decoded == STATUS_OK);
        if (step->action == FAKE_CUT)
            (void)nng_pipe_close(nng_msg_get_pipe(message));
        else if (step->action != FAKE_SILENCE)
            fake_reply(fake, step);
    }
    return NULL;
}

/* A fresh run directory in which nobody listens. */
static inline void fake_make_directory(struct fake *fake)
{
    memset(fake, 0, sizeof *fake);
    (void)snprintf(fake->directory, sizeof fake->directory, "/tmp/tandem-test-XXXXXX");
    const char *made = mkdtemp(fake->directory);
    CHECK(made != NULL);
    (void)snprintf(fake->path, sizeof fake->path, "%s/client.ipc", fake->directory);
}

static inline void fake_listen(struct fake *fake, const struct fake_step *steps, size_t count)
{
    char url[128];
    (void)snprintf(url, sizeof url, "ipc://%s", fake->path);
    fake->steps = steps;
    fake->step_count = count;
    fake->seen_count = 0;
    int result = pthread_mutex_init(&fake->mutex, NULL);
    CHECK(result == 0);
    result = nng_rep0_open(&fake->socket);
    CHECK(result == 0);
    result = nng_listen(fake->socket, url, NULL, 0);
    CHECK(result == 0);
    result = pthread_create(&fake->thread, NULL, fake_serve, fake);
    CHECK(result == 0);
}

/* Ends the coordinator, not its directory: fake_listen starts another one there. */
static inline void fake_stop(struct fake *fake)
{
    nng_close(fake->socket);
    (void)pthread_join(fake->thread, NULL);
    for (size_t i = 0; i < fake->seen_count; i++)
        nng_msg_free(fake->frames[i]);
    (void)unlink(fake->path);
}

static inline void fake_remove_directory(struct fake *fake)
{
    (void)rmdir(fake->directory);
}

#define FAKE_START(fake, steps) fake_listen(fake, steps, sizeof(steps) / sizeof((steps)[0]))

/* ---- Answers ---- */

static inline struct fake_step fake_step_of(struct client_answer answer)
{
    return (struct fake_step){.action = FAKE_ANSWER, .answer = answer};
}

static inline struct wire_text fake_text(const char *bytes)
{
    return wire_text_of(bytes);
}

static inline struct fake_step fake_accepted(const char *id, uint64_t seed)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_ACCEPTED};
    answer.accepted = (struct client_accepted){.id = fake_text(id),
                                               .sequence = 7,
                                               .seed = seed,
                                               .prompt_tokens = 3,
                                               .queue_position = 2,
                                               .durability = DURABILITY_NONE,
                                               .state = REQUEST_STATE_QUEUED,
                                               .instance = {{0x11}}};
    return fake_step_of(answer);
}

static inline struct client_output fake_output_message(uint64_t from_token, uint64_t from_byte,
                                                       const uint32_t *tokens, uint32_t count,
                                                       const char *text)
{
    return (struct client_output){.id = fake_text("id"),
                                  .from_token = from_token,
                                  .from_byte = from_byte,
                                  .tokens = wire_tokens_of(tokens, count),
                                  .text = fake_text(text),
                                  .state = REQUEST_STATE_RUNNING,
                                  .prompt_tokens = 3,
                                  .prompt_tokens_done = 3,
                                  .worker_ready = true};
}

static inline struct fake_step fake_output(uint64_t from_token, uint64_t from_byte,
                                           const uint32_t *tokens, uint32_t count, const char *text)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_OUTPUT};
    answer.output = fake_output_message(from_token, from_byte, tokens, count, text);
    return fake_step_of(answer);
}

/* The last news: no tokens, the outcome. */
static inline struct fake_step fake_finish(uint64_t from_token, uint64_t from_byte,
                                           enum finish_reason reason)
{
    static const uint32_t none;
    struct client_answer answer = {.type = CLIENT_ANSWER_OUTPUT};
    answer.output = fake_output_message(from_token, from_byte, &none, 0, "");
    answer.output.state = REQUEST_STATE_FINISHED;
    answer.output.has_finish = true;
    answer.output.finish.reason = reason;
    answer.output.finish.usage.prompt_tokens = 3;
    answer.output.finish.usage.completion_tokens = (uint32_t)from_token;
    answer.output.finish.timings.total_ns = 5000;
    return fake_step_of(answer);
}

static inline struct fake_step fake_error(enum error_code code, const char *message)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_ERROR};
    answer.error.code = code;
    answer.error.message = fake_text(message);
    return fake_step_of(answer);
}

#endif
