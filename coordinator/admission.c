#include "coordinator/admission.h"

#include "common/check.h"

#include <inttypes.h>
#include <stdarg.h>

bool refusal_set(struct refusal *refusal, enum error_code code, const char *field,
                 const char *format, ...)
{
    *refusal = (struct refusal){.code = code, .field = field};
    va_list arguments;
    va_start(arguments, format);
    struct text message;
    text_init(&message, refusal->message, sizeof refusal->message);
    text_format_list(&message, format, arguments);
    va_end(arguments);
    return false;
}

/* Adds the bound to a refusal that is set. */
static bool with_limit(struct refusal *refusal, uint64_t limit)
{
    refusal->has_limit = true;
    refusal->limit = limit;
    return false;
}

const char *admission_prompt_field(const struct client_submit *submit)
{
    return submit->has_prompt ? "prompt" : submit->has_ids ? "ids" : "messages";
}

static bool judge_text(const struct admission_limits *limits, const struct client_submit *submit,
                       struct refusal *refusal)
{
    const char *field = admission_prompt_field(submit);
    uint64_t bytes = submit->has_prompt     ? submit->prompt.length
                     : submit->has_messages ? submit->messages.encoded_bytes
                                            : 0;
    if (limits->ids_only && !submit->has_ids)
        return refusal_set(refusal, ERROR_CODE_UNSUPPORTED, field,
                           "the model is served without a tokenizer, so text cannot become "
                           "tokens; send `ids`");
    if (limits->ids_only && submit->stop.count > 0)
        return refusal_set(refusal, ERROR_CODE_UNSUPPORTED, "stop",
                           "the model is served without a tokenizer, so there is no text to stop "
                           "at; send `stop_token_ids`");
    if (submit->has_messages && !limits->chat_template)
        return refusal_set(refusal, ERROR_CODE_UNSUPPORTED, field,
                           "the model's chat template is not one that this version renders; "
                           "send `prompt` or `ids`");
    if (bytes > limits->prompt_bytes) {
        refusal_set(refusal, ERROR_CODE_TOO_LARGE, field,
                    "%s has %" PRIu64 " bytes; at most %" PRIu64, field, bytes,
                    limits->prompt_bytes);
        return with_limit(refusal, limits->prompt_bytes);
    }
    return true;
}

bool admission_judge_submit(const struct admission_limits *limits,
                            const struct client_submit *submit, struct stop_set *out_stops,
                            struct refusal *out_refusal)
{
    if (!judge_text(limits, submit, out_refusal))
        return false;
    struct byte_view stops[LIMIT_STOP_STRINGS];
    for (uint32_t i = 0; i < submit->stop.count; i++)
        stops[i] = (struct byte_view){submit->stop.items[i].bytes, submit->stop.items[i].length};
    struct reason reason;
    if (stop_set_init(out_stops, stops, submit->stop.count, reason_init(&reason)) != STATUS_OK)
        return refusal_set(out_refusal, ERROR_CODE_INVALID_REQUEST, "stop", "%s", reason.storage);
    return true;
}

bool admission_judge_ids(const struct admission_limits *limits, const uint32_t *ids,
                         uint32_t id_count, const char *field, struct refusal *out_refusal)
{
    for (uint32_t i = 0; i < id_count; i++) {
        if (ids[i] < limits->vocabulary)
            continue;
        refusal_set(out_refusal, ERROR_CODE_INVALID_REQUEST, field,
                    "%s[%u] is %u; the model's ids are below %u", field, i, ids[i],
                    limits->vocabulary);
        return with_limit(out_refusal, limits->vocabulary - 1);
    }
    return true;
}

/* The last token is sampled, never computed: it needs no room in the pool. */
static uint64_t most_tokens(const struct admission_limits *limits)
{
    uint64_t pool = limits->pool_positions + 1;
    return pool < limits->context ? pool : limits->context;
}

static bool judge_prompt_alone(const struct admission_limits *limits, uint32_t prompt_tokens,
                               const char *field, struct refusal *refusal)
{
    if (prompt_tokens == 0)
        return refusal_set(refusal, ERROR_CODE_INVALID_REQUEST, field, "%s gives no token", field);
    if (prompt_tokens >= limits->context) {
        refusal_set(refusal, ERROR_CODE_PROMPT_TOO_LONG, field,
                    "%s has %u tokens; at most %u, so that one can be generated", field,
                    prompt_tokens, limits->context - 1);
        return with_limit(refusal, limits->context - 1);
    }
    if (prompt_tokens > limits->pool_positions) {
        refusal_set(refusal, ERROR_CODE_TOO_LARGE, field,
                    "%s has %u tokens; the KV pool holds %" PRIu64, field, prompt_tokens,
                    limits->pool_positions);
        return with_limit(refusal, limits->pool_positions);
    }
    return true;
}

bool admission_judge_prompt(const struct admission_limits *limits, uint32_t prompt_tokens,
                            uint32_t max_tokens, const char *field, uint32_t *out_max_tokens,
                            struct refusal *out_refusal)
{
    if (!judge_prompt_alone(limits, prompt_tokens, field, out_refusal))
        return false;
    uint64_t total = (uint64_t)prompt_tokens + max_tokens;
    if (total > limits->context) {
        refusal_set(out_refusal, ERROR_CODE_INVALID_REQUEST, "max_tokens",
                    "max_tokens is %u; the context of %u leaves %u after a prompt of %u",
                    max_tokens, limits->context, limits->context - prompt_tokens, prompt_tokens);
        return with_limit(out_refusal, limits->context - prompt_tokens);
    }
    if (total > most_tokens(limits)) {
        refusal_set(out_refusal, ERROR_CODE_TOO_LARGE, "max_tokens",
                    "max_tokens is %u; the KV pool of %" PRIu64 " positions leaves %" PRIu64
                    " after a prompt of %u",
                    max_tokens, limits->pool_positions, most_tokens(limits) - prompt_tokens,
                    prompt_tokens);
        return with_limit(out_refusal, most_tokens(limits) - prompt_tokens);
    }
    *out_max_tokens =
        max_tokens != 0 ? max_tokens : (uint32_t)(most_tokens(limits) - prompt_tokens);
    return true;
}
