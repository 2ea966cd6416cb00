/* Everything that is asked and answered once, as the public header shows it. */
#include "client/error.h"
#include "client/exchange.h"
#include "client/finish.h"
#include "client/submission.h"
#include "client/tandem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy_text(char *out, size_t capacity, struct wire_text text)
{
    (void)snprintf(out, capacity, "%.*s", (int)text.length, text.bytes);
}

enum tandem_result tandem_status(struct tandem *tandem, const char *id,
                                 struct tandem_status *out_status, struct tandem_error *error)
{
    struct client_request question = {.type = CLIENT_STATUS};
    enum tandem_result result = submission_id(id, &question.status.id, error);
    if (result != TANDEM_OK)
        return result;
    struct answer answer = {0};
    result = exchange(tandem, &question, CLIENT_ANSWER_STATUS, &answer, error);
    if (result != TANDEM_OK)
        return result;
    const struct client_status_answer *status = &answer.message.status;
    *out_status = (struct tandem_status){
        .sequence = status->sequence,
        .seed = status->seed,
        .state = state_from_message(status->state),
        .queue_position = status->queue_position,
        .prompt_tokens = status->prompt_tokens,
        .prompt_tokens_done = status->prompt_tokens_done,
        .completion_tokens = status->completion_tokens,
        .text_bytes = status->text_bytes,
        .preemptions = status->preemptions,
        .age_ms = status->age_ms,
        .worker_ready = status->worker_ready,
    };
    if (status->has_finish)
        finish_from_message(&out_status->finish, &status->finish);
    answer_free(&answer);
    return TANDEM_OK;
}

enum tandem_result tandem_health(struct tandem *tandem, struct tandem_health *out_health,
                                 struct tandem_error *error)
{
    const struct client_request question = {.type = CLIENT_HEALTH};
    struct answer answer = {0};
    enum tandem_result result = exchange(tandem, &question, CLIENT_ANSWER_HEALTH, &answer, error);
    if (result != TANDEM_OK)
        return result;
    const struct client_health_answer *health = &answer.message.health;
    *out_health = (struct tandem_health){
        .live = health->live,
        .ready = health->ready,
        .draining = health->draining,
        .epoch = health->epoch,
        .uptime_ms = health->uptime_ms,
    };
    (void)id128_format(&health->instance, out_health->instance);
    size_t length = 0;
    for (uint32_t i = 0; i < health->reasons.count && length < sizeof out_health->reasons; i++) {
        const struct wire_text *reason = &health->reasons.items[i];
        int wanted = snprintf(out_health->reasons + length, sizeof out_health->reasons - length,
                              "%s%.*s", i > 0 ? ", " : "", (int)reason->length, reason->bytes);
        length += wanted > 0 ? (size_t)wanted : 0;
    }
    answer_free(&answer);
    return TANDEM_OK;
}

enum tandem_result tandem_stats(struct tandem *tandem, struct tandem_figure **out_figures,
                                size_t *out_count, struct tandem_error *error)
{
    const struct client_request question = {.type = CLIENT_STATS};
    struct answer answer = {0};
    enum tandem_result result = exchange(tandem, &question, CLIENT_ANSWER_STATS, &answer, error);
    if (result != TANDEM_OK)
        return result;
    const struct wire_table *table = &client_stats_answer_table;
    struct tandem_figure *figures = calloc(table->field_count, sizeof *figures);
    if (figures == NULL) {
        answer_free(&answer);
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    }
    size_t count = 0;
    for (uint32_t i = 0; i < table->field_count; i++) {
        const struct wire_field *field = &table->fields[i];
        if (field->type != WIRE_TYPE_U64)
            continue;
        figures[count].name = field->name;
        memcpy(&figures[count].value, (const char *)&answer.message.stats + field->offset,
               sizeof figures[count].value);
        count++;
    }
    answer_free(&answer);
    *out_figures = figures;
    *out_count = count;
    return TANDEM_OK;
}

static void take_model(struct tandem_model *out_model, const struct client_model *model,
                       const struct client_models_answer *limits)
{
    *out_model = (struct tandem_model){
        .context = model->context,
        .vocabulary = model->vocabulary,
        .chat_template = model->chat_template,
        .slots = limits->slots,
        .pool_tokens = limits->pool_tokens,
        .prompt_bytes_max = limits->prompt_bytes_max,
        .queue_requests_max = limits->queue_requests_max,
        .kept_ms = limits->kept_ms,
        .ids_only = model->ids_only,
    };
    copy_text(out_model->name, sizeof out_model->name, model->name);
    copy_text(out_model->architecture, sizeof out_model->architecture, model->architecture);
    copy_text(out_model->arithmetic, sizeof out_model->arithmetic, model->arithmetic);
    (void)id128_format(&model->metadata_hash, out_model->hash);
}

enum tandem_result tandem_models(struct tandem *tandem, struct tandem_model **out_models,
                                 size_t *out_count, struct tandem_error *error)
{
    const struct client_request question = {.type = CLIENT_MODELS};
    struct answer answer = {0};
    enum tandem_result result = exchange(tandem, &question, CLIENT_ANSWER_MODELS, &answer, error);
    if (result != TANDEM_OK)
        return result;
    const struct client_models_answer *limits = &answer.message.models;
    struct tandem_model *models = calloc((size_t)limits->models.count + 1, sizeof *models);
    if (models == NULL) {
        answer_free(&answer);
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    }
    size_t count = 0;
    struct client_model model;
    const uint8_t *cursor = limits->models.encoded;
    while (count < limits->models.count && client_model_next(&limits->models, &cursor, &model))
        take_model(&models[count++], &model, limits);
    answer_free(&answer);
    *out_models = models;
    *out_count = count;
    return TANDEM_OK;
}

enum tandem_result tandem_tokenize(struct tandem *tandem, const struct tandem_request *request,
                                   uint32_t **out_ids, size_t *out_count,
                                   struct tandem_error *error)
{
    struct submission submission;
    enum tandem_result result = submission_init_tokenize(&submission, request, error);
    if (result != TANDEM_OK)
        return result;
    struct answer answer = {0};
    result = exchange(tandem, &submission.request, CLIENT_ANSWER_TOKENS, &answer, error);
    submission_free(&submission);
    if (result != TANDEM_OK)
        return result;
    const struct wire_tokens *tokens = &answer.message.tokens.ids;
    uint32_t *ids = calloc((size_t)tokens->count + 1, sizeof *ids);
    if (ids == NULL) {
        result = error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    } else {
        *out_count = wire_tokens_copy(tokens, ids, tokens->count);
        *out_ids = ids;
    }
    answer_free(&answer);
    return result;
}

enum tandem_result tandem_detokenize(struct tandem *tandem, const uint32_t *ids, size_t id_count,
                                     char **out_bytes, size_t *out_count,
                                     struct tandem_error *error)
{
    if (id_count > TANDEM_FRAME_BYTES_MAX / sizeof *ids)
        return error_set_limit(error, TANDEM_TOO_LARGE, "ids", TANDEM_FRAME_BYTES_MAX / sizeof *ids,
                               "there are %zu ids, the limit is %zu", id_count,
                               TANDEM_FRAME_BYTES_MAX / sizeof *ids);
    struct client_request question = {.type = CLIENT_DETOKENIZE};
    question.detokenize.ids = wire_tokens_of(ids, (uint32_t)id_count);
    struct answer answer = {0};
    enum tandem_result result = exchange(tandem, &question, CLIENT_ANSWER_TEXT, &answer, error);
    if (result != TANDEM_OK)
        return result;
    const struct wire_text *text = &answer.message.text.text;
    char *bytes = calloc((size_t)text->length + 1, 1);
    if (bytes == NULL) {
        result = error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    } else {
        memcpy(bytes, text->bytes, text->length);
        *out_bytes = bytes;
        *out_count = text->length;
    }
    answer_free(&answer);
    return result;
}
