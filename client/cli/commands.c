#include "client/cli/commands.h"

#include "client/cli/answer.h"
#include "client/cli/input.h"
#include "common/clock.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *yes_no(bool value)
{
    return value ? "yes" : "no";
}

/* Ids in, ids out. */
static enum exit_code generate_ids(struct session *session)
{
    struct reason reason;
    uint32_t *ids = NULL;
    size_t count = 0;
    if (input_read_ids(session->arguments, &ids, &count, reason_init(&reason)) != STATUS_OK)
        return session_refuse(session, reason.text.bytes);
    struct tandem_request request = {.ids = ids, .id_count = count};
    answer_take_arguments(session->arguments, &request);
    enum exit_code code = session_connect(session);
    if (code == EXIT_CODE_OK)
        code = answer_once(session, &request);
    free(ids);
    return code;
}

enum exit_code command_generate(struct session *session)
{
    if (session->arguments->ids != NULL)
        return generate_ids(session);
    struct reason reason;
    struct input input;
    if (input_read(session->arguments, true, &input, reason_init(&reason)) != STATUS_OK)
        return session_refuse(session, reason.text.bytes);
    struct tandem_request request = {.prompt = input.text, .prompt_bytes = input.length};
    answer_take_arguments(session->arguments, &request);
    enum exit_code code = session_connect(session);
    if (code == EXIT_CODE_OK)
        code = answer_once(session, &request);
    input_free(&input);
    return code;
}

/* The id that `status` and `cancel` are about; then the connection is there too. */
static enum exit_code take_id(struct session *session, const char **out_id)
{
    if (session->arguments->word_count != 1)
        return session_refuse(session, "give the id of one request");
    *out_id = session->arguments->words[0];
    return session_connect(session);
}

/* For the commands that take no words. */
static enum exit_code take_nothing(struct session *session)
{
    if (session->arguments->word_count != 0)
        return session_refuse(session, "this command takes no text");
    return session_connect(session);
}

enum exit_code command_status(struct session *session)
{
    const char *id = NULL;
    enum exit_code code = take_id(session, &id);
    if (code != EXIT_CODE_OK)
        return code;
    struct tandem_status status;
    struct tandem_error error;
    enum tandem_result result = tandem_status(session->tandem, id, &status, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    const char *state = tandem_state_name(status.state);
    if (session->arguments->json)
        return session_print_json(
            session, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s}", "id", id,
                               "state", state, "sequence", (json_int_t)status.sequence,
                               "queue_position", (json_int_t)status.queue_position, "prompt_tokens",
                               (json_int_t)status.prompt_tokens, "prompt_tokens_done",
                               (json_int_t)status.prompt_tokens_done, "completion_tokens",
                               (json_int_t)status.completion_tokens, "preemptions",
                               (json_int_t)status.preemptions, "age_ms", (json_int_t)status.age_ms,
                               "worker_ready", (int)status.worker_ready, "finish_reason",
                               status.finish.reason));
    session_print(session, "%s%s%s\n", state, status.finish.reason[0] != '\0' ? ": " : "",
                  status.finish.reason);
    if (status.state == TANDEM_QUEUED)
        session_print(session, "before it    %u requests\n", status.queue_position);
    session_print(session, "prompt       %u of %u tokens read\n", status.prompt_tokens_done,
                  status.prompt_tokens);
    session_print(session, "answer       %u tokens, %" PRIu64 " bytes\n", status.completion_tokens,
                  status.text_bytes);
    session_print(session, "age          %.1f s\n", (double)status.age_ms / 1000.0);
    session_print(session, "worker       %s\n", status.worker_ready ? "ready" : "missing");
    return session_flush(session);
}

enum exit_code command_cancel(struct session *session)
{
    const char *id = NULL;
    enum exit_code code = take_id(session, &id);
    if (code != EXIT_CODE_OK)
        return code;
    struct tandem_error error;
    enum tandem_result result = tandem_cancel(session->tandem, id, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    if (session->arguments->json)
        return session_print_json(session, json_pack("{s:s}", "id", id));
    return EXIT_CODE_OK;
}

enum exit_code command_health(struct session *session)
{
    enum exit_code code = take_nothing(session);
    if (code != EXIT_CODE_OK)
        return code;
    struct tandem_health health;
    struct tandem_error error;
    enum tandem_result result = tandem_health(session->tandem, &health, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    if (session->arguments->json) {
        code = session_print_json(session, json_pack("{s:b, s:b, s:b, s:s, s:s, s:I, s:I}", "live",
                                                     (int)health.live, "ready", (int)health.ready,
                                                     "draining", (int)health.draining, "reasons",
                                                     health.reasons, "instance", health.instance,
                                                     "epoch", (json_int_t)health.epoch, "uptime_ms",
                                                     (json_int_t)health.uptime_ms));
    } else {
        session_print(session, "%s%s%s%s\n", health.ready ? "ready" : "not ready",
                      health.reasons[0] != '\0' ? ": " : "", health.reasons,
                      strcmp(health.reasons, "no_worker") == 0 ? " (start tandem-worker)" : "");
        code = session_flush(session);
    }
    return code == EXIT_CODE_OK && !health.ready ? EXIT_CODE_REQUEST_FAILED : code;
}

enum exit_code command_stats(struct session *session)
{
    enum exit_code code = take_nothing(session);
    if (code != EXIT_CODE_OK)
        return code;
    struct tandem_figure *figures = NULL;
    size_t count = 0;
    struct tandem_error error;
    enum tandem_result result = tandem_stats(session->tandem, &figures, &count, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    json_t *value = json_object();
    for (size_t i = 0; i < count; i++) {
        if (session->arguments->json)
            (void)json_object_set_new(value, figures[i].name,
                                      json_integer((json_int_t)figures[i].value));
        else
            session_print(session, "%-26s %" PRIu64 "\n", figures[i].name, figures[i].value);
    }
    tandem_free(figures);
    if (session->arguments->json)
        return session_print_json(session, value);
    json_decref(value);
    return session_flush(session);
}

static void print_model(struct session *session, const struct tandem_model *model)
{
    session_print(session, "name            %s\n", model->name);
    session_print(session, "architecture    %s\n", model->architecture);
    session_print(session, "context         %u tokens\n", model->context);
    session_print(session, "vocabulary      %u tokens\n", model->vocabulary);
    session_print(session, "chat            %s\n", yes_no(model->chat_template));
    session_print(session, "text            %s\n",
                  model->ids_only ? "no: token ids only (generate --ids)" : "yes");
    session_print(session, "at a time       %u requests, %" PRIu64 " tokens together\n",
                  model->slots, model->pool_tokens);
    session_print(session, "queue           %" PRIu64 " requests\n", model->queue_requests_max);
    session_print(session, "prompt text     %" PRIu64 " bytes\n", model->prompt_bytes_max);
    session_print(session, "answers kept    %" PRIu64 " s\n", model->kept_ms / 1000);
    session_print(session, "arithmetic      %s\n",
                  model->arithmetic[0] != '\0' ? model->arithmetic : "(no worker yet)");
    session_print(session, "hash            %s\n", model->hash);
}

static json_t *json_of_model(const struct tandem_model *model)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:b, s:b, s:I, s:I, s:I, s:I, s:I}", "name",
                     model->name, "architecture", model->architecture, "arithmetic",
                     model->arithmetic, "hash", model->hash, "context", (json_int_t)model->context,
                     "vocabulary", (json_int_t)model->vocabulary, "chat_template",
                     (int)model->chat_template, "ids_only", (int)model->ids_only, "slots",
                     (json_int_t)model->slots, "pool_tokens", (json_int_t)model->pool_tokens,
                     "prompt_bytes_max", (json_int_t)model->prompt_bytes_max, "queue_requests_max",
                     (json_int_t)model->queue_requests_max, "kept_ms", (json_int_t)model->kept_ms);
}

enum exit_code command_models(struct session *session)
{
    enum exit_code code = take_nothing(session);
    if (code != EXIT_CODE_OK)
        return code;
    struct tandem_model *models = NULL;
    size_t count = 0;
    struct tandem_error error;
    enum tandem_result result = tandem_models(session->tandem, &models, &count, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        if (session->arguments->json)
            (void)json_array_append_new(list, json_of_model(&models[i]));
        else
            print_model(session, &models[i]);
    }
    tandem_free(models);
    if (session->arguments->json)
        return session_print_json(session, json_pack("{s:o}", "models", list));
    json_decref(list);
    return session_flush(session);
}

static enum exit_code print_ids(struct session *session, const uint32_t *ids, size_t count)
{
    if (session->arguments->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < count; i++)
            (void)json_array_append_new(list, json_integer((json_int_t)ids[i]));
        return session_print_json(session, json_pack("{s:o}", "ids", list));
    }
    for (size_t i = 0; i < count; i++)
        (void)fprintf(session->output.file, "%s%" PRIu32, i > 0 ? " " : "", ids[i]);
    (void)fprintf(session->output.file, "\n");
    return session_flush(session);
}

static enum exit_code show_ids(struct session *session, const struct tandem_request *request)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    struct tandem_error error;
    enum tandem_result result = tandem_tokenize(session->tandem, request, &ids, &count, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    enum exit_code code = print_ids(session, ids, count);
    tandem_free(ids);
    return code;
}

enum exit_code command_tokenize(struct session *session)
{
    const char *system = session->arguments->system;
    struct reason reason;
    struct input input;
    if (input_read(session->arguments, false, &input, reason_init(&reason)) != STATUS_OK)
        return session_refuse(session, reason.text.bytes);
    const struct tandem_message messages[2] = {
        {.role = "system", .content = system},
        {.role = "user", .content = input.text, .content_bytes = input.length}};
    struct tandem_request request = {.plain_text = session->arguments->plain_text};
    if (session->arguments->chat) {
        request.messages = system != NULL ? messages : messages + 1;
        request.message_count = system != NULL ? 2 : 1;
    } else {
        request.prompt = input.text;
        request.prompt_bytes = input.length;
    }
    enum exit_code code = session_connect(session);
    if (code == EXIT_CODE_OK)
        code = show_ids(session, &request);
    input_free(&input);
    return code;
}

static enum exit_code print_text(struct session *session, const char *text, size_t length)
{
    if (session->arguments->json)
        return session_print_json(session, json_pack("{s:o}", "text", json_of_text(text, length)));
    (void)terminal_write(&session->output, text, length);
    if (session->output.interactive)
        (void)terminal_end_line(&session->output);
    return session_flush(session);
}

static enum exit_code show_text(struct session *session, const uint32_t *ids, size_t count)
{
    char *text = NULL;
    size_t length = 0;
    struct tandem_error error;
    enum tandem_result result =
        tandem_detokenize(session->tandem, ids, count, &text, &length, &error);
    if (result != TANDEM_OK)
        return session_fail(session, result, &error);
    enum exit_code code = print_text(session, text, length);
    tandem_free(text);
    return code;
}

enum exit_code command_detokenize(struct session *session)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    struct input input;
    if (input_read(session->arguments, false, &input, why) != STATUS_OK)
        return session_refuse(session, why->bytes);
    size_t count = 0;
    uint32_t *ids = calloc(input.length + 1, sizeof *ids); /* an id takes at least one byte */
    enum status status = ids != NULL ? input_parse_ids(input.text, input.length, ids, &count, why)
                                     : STATUS_OUT_OF_MEMORY;
    input_free(&input);
    if (status != STATUS_OK) {
        free(ids);
        return session_refuse(session, ids != NULL ? why->bytes : "out of memory");
    }
    enum exit_code code = session_connect(session);
    if (code == EXIT_CODE_OK)
        code = show_text(session, ids, count);
    free(ids);
    return code;
}
