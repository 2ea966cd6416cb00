#include "client/cli/answer.h"

#include "common/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* While progress is shown the wait for news is short, so that the line is fresh; a poll costs one
 * round trip. Into a log a missing worker is told after WORKER_MS. */
enum { PROGRESS_MS = 300, WORKER_MS = 2000, JSON_HOLD_TOKENS = 32 };

/* One request under way. */
struct view {
    struct session *session;
    struct tandem_stream *stream;
    struct reply *reply;
    uint64_t start_ns;
    uint64_t first_ns;  /* when the first tokens came; 0 = not yet */
    size_t first_count; /* how many came then */
    uint64_t last_ns;   /* when the last ones came */
    size_t text_capacity;
    size_t id_capacity;
    bool stall_told; /* "waiting for a worker" stands below the text */
};

void answer_take_arguments(const struct arguments *arguments, struct tandem_request *request)
{
    request->id = arguments->id;
    request->temperature = (float)arguments->temperature;
    request->top_k = (uint32_t)arguments->top_k;
    request->top_p = (float)arguments->top_p;
    request->min_p = (float)arguments->min_p;
    request->has_seed = arguments->has_seed;
    request->seed = arguments->seed;
    request->max_tokens = (uint32_t)arguments->max_tokens;
    request->stops = arguments->stops;
    request->stop_count = arguments->stop_count;
    request->deadline_ms = arguments->deadline_ms;
    request->ignore_eos = arguments->ignore_eos;
    request->plain_text = arguments->plain_text;
}

void reply_free(struct reply *reply)
{
    free(reply->text);
    free(reply->ids);
    *reply = (struct reply){0};
}

/* Room for `wanted` items of `size`; doubles, so that a long answer is copied a few times only. */
static bool reserve(void **memory, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return true;
    size_t room = wanted < 256 ? 256 : 2 * wanted;
    void *grown = realloc(*memory, room * size);
    if (grown == NULL)
        return false;
    *memory = grown;
    *capacity = room;
    return true;
}

static bool keep(struct view *view, const struct tandem_output *news)
{
    struct reply *reply = view->reply;
    void *text = reply->text;
    void *ids = reply->ids;
    bool kept = reserve(&text, &view->text_capacity, reply->text_bytes + news->text_bytes + 1, 1) &&
                reserve(&ids, &view->id_capacity, reply->id_count + news->token_count + 1,
                        sizeof *reply->ids);
    reply->text = text;
    reply->ids = ids;
    if (!kept)
        return false;
    if (news->text_bytes > 0)
        memcpy(reply->text + reply->text_bytes, news->text, news->text_bytes);
    if (news->token_count > 0)
        memcpy(reply->ids + reply->id_count, news->tokens, news->token_count * sizeof *reply->ids);
    reply->text_bytes += news->text_bytes;
    reply->id_count += news->token_count;
    reply->text[reply->text_bytes] = '\0';
    return true;
}

/* What the user waits for, before the first token. Into a log only what somebody must act upon. */
static void show_waiting(struct view *view, const struct tandem_output *news)
{
    char line[sizeof view->session->progress.shown];
    const struct arguments *arguments = view->session->arguments;
    if (!view->session->progress.enabled) {
        if (!news->worker_ready && !view->stall_told && !arguments->quiet && !arguments->json)
            (void)fprintf(stderr, "[waiting for a worker]\n");
        view->stall_told = view->stall_told || !news->worker_ready;
        return;
    }
    if (!news->worker_ready)
        (void)snprintf(line, sizeof line, "waiting for a worker");
    else if (news->state == TANDEM_QUEUED && news->queue_position > 0)
        (void)snprintf(line, sizeof line, "queued behind %u requests", news->queue_position);
    else if (news->state == TANDEM_PREEMPTED)
        (void)snprintf(line, sizeof line, "waiting for memory that an older request uses");
    else if (news->prompt_tokens_done < news->prompt_tokens)
        (void)snprintf(line, sizeof line, "reading the prompt: %u of %u tokens",
                       news->prompt_tokens_done, news->prompt_tokens);
    else
        (void)snprintf(line, sizeof line, "%s", tandem_state_name(news->state));
    progress_show(&view->session->progress, line);
}

/* A worker that is lost in the middle of the text: told below it, once, since a line that is
 * overwritten would take the text with it. */
static void show_stall(struct view *view, const struct tandem_output *news)
{
    if (news->worker_ready || view->stall_told || !view->session->progress.enabled)
        return;
    (void)terminal_end_line(&view->session->output);
    (void)fprintf(stderr, "[waiting for a worker; the answer goes on below]\n");
    view->stall_told = true;
}

/* Ids with blanks between them. False when standard output takes no more. */
static bool show_ids(struct session *session, const struct tandem_output *news)
{
    if (news->token_count > 0)
        progress_clear(&session->progress);
    for (size_t i = 0; i < news->token_count; i++) {
        char id[16];
        int length = snprintf(id, sizeof id, "%s%" PRIu32, session->output.line_open ? " " : "",
                              news->tokens[i]);
        if (!terminal_write(&session->output, id, (size_t)length))
            return false;
    }
    return true;
}

/* False when standard output takes no more. */
static bool show(struct view *view, const struct tandem_output *news)
{
    struct session *session = view->session;
    const uint64_t now_ns = clock_now_ns();
    if (news->token_count > 0) {
        if (view->first_ns == 0) {
            view->first_ns = now_ns;
            view->first_count = news->token_count;
        }
        view->last_ns = now_ns;
        view->stall_told = false;
    } else if (!news->finished && view->first_ns == 0) {
        show_waiting(view, news);
    } else if (!news->finished) {
        show_stall(view, news);
    }
    if (session->arguments->json)
        return true;
    if (session->arguments->ids != NULL)
        return show_ids(session, news);
    if (news->text_bytes == 0)
        return true;
    progress_clear(&session->progress);
    return terminal_write(&session->output, news->text, news->text_bytes);
}

/* Tokens per second counts what came after the first news: the time to the first token is told
 * apart. */
static void show_figures(const struct view *view)
{
    const struct tandem_finish *finish = &view->reply->finish;
    const size_t later = view->reply->id_count - view->first_count;
    const double seconds = (double)(view->last_ns - view->first_ns) / (double)NS_PER_S;
    (void)fprintf(stderr, "[%u tokens", finish->completion_tokens);
    if (later > 0 && seconds > 0)
        (void)fprintf(stderr, ", %.1f tokens/s", (double)later / seconds);
    if (view->first_ns != 0)
        (void)fprintf(stderr, ", first token after %.0f ms",
                      (double)(view->first_ns - view->start_ns) / (double)NS_PER_MS);
    if (strcmp(finish->reason, "stop") != 0)
        (void)fprintf(stderr, ", ended by %s",
                      strcmp(finish->reason, "length") == 0 ? "the token limit" : finish->reason);
    (void)fprintf(stderr, "]\n");
}

static enum exit_code fail_memory(struct session *session)
{
    const struct tandem_error error = {.code = "no_memory", .message = "out of memory"};
    return session_fail(session, TANDEM_NO_MEMORY, &error);
}

static uint32_t choose_wait_ms(const struct view *view)
{
    if (view->session->progress.enabled)
        return PROGRESS_MS;
    return view->first_ns == 0 && !view->stall_told ? WORKER_MS : TANDEM_WAIT_MS_MAX;
}

/* Reads to the outcome. A reader that stops before it cancels, so that nothing runs for nobody. */
static enum exit_code read_stream(struct view *view)
{
    struct session *session = view->session;
    const char *id = tandem_stream_accepted(view->stream)->id;
    for (;;) {
        struct tandem_output news;
        struct tandem_error error;
        const uint32_t wait_ms = choose_wait_ms(view);
        const uint32_t hold =
            session->arguments->json && view->first_ns != 0 ? (uint32_t)JSON_HOLD_TOKENS : 1;
        enum tandem_result result = tandem_next(view->stream, wait_ms, hold, &news, &error);
        if (result != TANDEM_OK)
            return session_fail(session, result, &error);
        if (!keep(view, &news)) {
            (void)tandem_cancel(session->tandem, id, NULL);
            return fail_memory(session);
        }
        if (!show(view, &news)) {
            (void)tandem_cancel(session->tandem, id, NULL);
            return session_flush(session);
        }
        if (news.finished) {
            view->reply->finish = news.finish;
            return EXIT_CODE_OK;
        }
    }
}

/* From submission to the outcome; `request` has its id. */
static enum exit_code run(struct view *view, const struct tandem_request *request)
{
    struct session *session = view->session;
    struct tandem_error error;
    interrupt_begin(session->interrupt, session->tandem, request->id);
    enum tandem_result result = tandem_submit(session->tandem, request, &view->stream, &error);
    enum exit_code code = EXIT_CODE_OK;
    if (result == TANDEM_OK) {
        /* A Ctrl-C that overtook the submission found no such request. */
        if (interrupt_seen(session->interrupt))
            (void)tandem_cancel(session->tandem, request->id, NULL);
        view->reply->seed = tandem_stream_accepted(view->stream)->seed;
        (void)snprintf(view->reply->id, sizeof view->reply->id, "%s", request->id);
        code = read_stream(view);
    }
    view->reply->interrupted = interrupt_end(session->interrupt);
    tandem_stream_close(view->stream);
    progress_clear(&session->progress);
    if (result == TANDEM_OK)
        return code;
    if (view->reply->interrupted && strcmp(error.code, "cancelled") == 0)
        return EXIT_CODE_OK;
    return session_fail(session, result, &error);
}

static struct tandem_error error_of(const struct tandem_finish *finish)
{
    struct tandem_error error = {0};
    memcpy(error.code, finish->reason, sizeof error.code);
    memcpy(error.message, finish->message, sizeof error.message);
    return error;
}

enum exit_code answer_show(struct session *session, const struct tandem_request *request,
                           struct reply *reply)
{
    struct tandem_request named = *request;
    struct tandem_error error;
    char id[33];
    if (named.id == NULL) {
        enum tandem_result result = tandem_draw_id(id, &error);
        if (result != TANDEM_OK)
            return session_fail(session, result, &error);
        named.id = id;
    }
    struct view view = {.session = session, .reply = reply, .start_ns = clock_now_ns()};
    enum exit_code code = run(&view, &named);
    if (code != EXIT_CODE_OK || session->arguments->json)
        return code;
    if (!terminal_end_line(&session->output))
        return session_flush(session);
    if (reply->finish.failed) {
        error = error_of(&reply->finish);
        (void)session_fail(session, TANDEM_REFUSED, &error);
    }
    if (!session->arguments->quiet)
        show_figures(&view);
    return EXIT_CODE_OK;
}

/* 64-bit numbers that a JSON reader would round go as text. */
static json_t *json_of_reply(const struct reply *reply)
{
    const struct tandem_finish *finish = &reply->finish;
    char seed[24];
    char hash[20];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, reply->seed);
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, finish->logits_hash);
    json_t *ids = json_array();
    for (size_t i = 0; i < reply->id_count; i++)
        (void)json_array_append_new(ids, json_integer((json_int_t)reply->ids[i]));
    json_t *usage = json_pack(
        "{s:I, s:I, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)finish->prompt_tokens,
        "completion_tokens", (json_int_t)finish->completion_tokens, "recomputed_tokens",
        (json_int_t)finish->recomputed_tokens, "preemptions", (json_int_t)finish->preemptions,
        "workers_lost", (json_int_t)finish->workers_lost);
    json_t *timings =
        json_pack("{s:I, s:I, s:I, s:I}", "tokenize_ns", (json_int_t)finish->tokenize_ns,
                  "queue_ns", (json_int_t)finish->queue_ns, "first_token_ns",
                  (json_int_t)finish->first_token_ns, "total_ns", (json_int_t)finish->total_ns);
    json_t *value = json_pack("{s:s, s:o, s:o, s:s, s:s, s:o, s:o}", "id", reply->id, "text",
                              json_of_text(reply->text, reply->text_bytes), "ids", ids,
                              "finish_reason", finish->failed ? "error" : finish->reason, "seed",
                              seed, "usage", usage, "timings", timings);
    if (finish->has_logits_hash)
        (void)json_object_set_new(value, "logits_hash", json_string(hash));
    if (finish->failed)
        (void)json_object_set_new(
            value, "error",
            json_pack("{s:s, s:s}", "code", finish->reason, "message", finish->message));
    return value;
}

enum exit_code answer_once(struct session *session, const struct tandem_request *request)
{
    struct reply reply = {0};
    enum exit_code code = answer_show(session, request, &reply);
    if (code == EXIT_CODE_OK && session->arguments->json && reply.finish.reason[0] != '\0')
        code = session_print_json(session, json_of_reply(&reply));
    if (code == EXIT_CODE_OK && reply.interrupted)
        code = EXIT_CODE_INTERRUPTED;
    /* Neither an error nor somebody else's cancel is an answer. */
    if (code == EXIT_CODE_OK &&
        (reply.finish.failed || strcmp(reply.finish.reason, "cancelled") == 0))
        code = EXIT_CODE_REQUEST_FAILED;
    reply_free(&reply);
    return code;
}
