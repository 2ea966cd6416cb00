#include "proto/client_messages.h"

#include "common/check.h"
#include "proto/wire_reasons.h"
#include "proto/wire_table.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(LIMIT_CLIENT_FRAME_BYTES *(int64_t)sizeof(uint32_t) < LIMIT_CLIENT_ANSWER_BYTES,
               "a token for each byte of the longest text fits an answer");
_Static_assert(LIMIT_CONTEXT_TOKENS + 0 < LIMIT_WIRE_NODES + 0,
               "the longest prompt may come as an array of ids");

WIRE_DEFINE_ENUM(request_state, REQUEST_STATE_LIST)
WIRE_DEFINE_ENUM(finish_reason, FINISH_REASON_LIST)
WIRE_DEFINE_ENUM(durability, DURABILITY_LIST)

WIRE_DEFINE_GROUP(chat_message, CHAT_MESSAGE_FIELDS, "One message of a conversation.")
WIRE_DEFINE_GROUP(client_usage, CLIENT_USAGE_FIELDS, "Counts of a finished request.")
WIRE_DEFINE_GROUP(client_timings, CLIENT_TIMINGS_FIELDS, "Durations of a finished request.")
WIRE_DEFINE_GROUP(client_finish, CLIENT_FINISH_FIELDS, "The one outcome of a request.")
WIRE_DEFINE_GROUP(client_model, CLIENT_MODEL_FIELDS, "One model.")
CLIENT_REQUEST_LIST(WIRE_DEFINE_TABLE)
CLIENT_ANSWER_LIST(WIRE_DEFINE_TABLE)

/* Asked for often enough to deserve a better answer than "no field". */
static const char *const unsupported_fields[] = {
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "grammar",
    "json_schema",
    "response_format",
    "tools",
    "stream",
    NULL,
};

static const struct wire_table *const request_tables[] = {CLIENT_REQUEST_LIST(WIRE_TABLE_ADDRESS)};
static const struct wire_table *const answer_tables[] = {CLIENT_ANSWER_LIST(WIRE_TABLE_ADDRESS)};

const struct wire_family client_request_family = {
    .name = "request of a client",
    .unsupported = unsupported_fields,
    .tables = request_tables,
    .count = sizeof request_tables / sizeof request_tables[0],
};

const struct wire_family client_answer_family = {
    .name = "answer to a client",
    .tables = answer_tables,
    .count = sizeof answer_tables / sizeof answer_tables[0],
};

/* ---- Rules beyond the fields ---- */

static bool judge_version(bool given, uint32_t version, struct wire_error *out_error)
{
    if (!given || (version >= PROTOCOL_VERSION_MIN && version <= PROTOCOL_VERSION_MAX))
        return true;
    wire_refuse(out_error, ERROR_CODE_UNSUPPORTED_VERSION, "version",
                "`version` is %u; this coordinator speaks %d to %d", version, PROTOCOL_VERSION_MIN,
                PROTOCOL_VERSION_MAX);
    out_error->has_limit = true;
    out_error->limit = version > PROTOCOL_VERSION_MAX ? PROTOCOL_VERSION_MAX : PROTOCOL_VERSION_MIN;
    return false;
}

static bool judge_source(int given, const char *names, struct wire_error *out_error)
{
    if (given == 1)
        return true;
    wire_refuse(out_error, ERROR_CODE_INVALID_REQUEST, "prompt",
                "%d of %s are given; give exactly one", given, names);
    return false;
}

static bool judge_request(const struct client_request *request, struct wire_error *out_error)
{
    /* All requests begin with the same field, and so do their structs. */
    if (!judge_version(request->health.has_version, request->health.version, out_error))
        return false;
    if (request->type == CLIENT_SUBMIT)
        return judge_source(request->submit.has_prompt + request->submit.has_ids +
                                request->submit.has_messages,
                            "`prompt`, `ids` and `messages`", out_error);
    if (request->type == CLIENT_TOKENIZE)
        return judge_source(request->tokenize.has_prompt + request->tokenize.has_messages,
                            "`prompt` and `messages`", out_error);
    return true;
}

#define ASSERT_VERSION_FIRST(number, tag, member, name, FIELDS, text)                              \
    _Static_assert(offsetof(struct tag, has_version) ==                                            \
                       offsetof(struct client_health, has_version),                                \
                   "version is read without knowing the type");                                    \
    _Static_assert(offsetof(struct tag, version) == offsetof(struct client_health, version),       \
                   "version is read without knowing the type");
CLIENT_REQUEST_LIST(ASSERT_VERSION_FIRST)

/* ---- Decode and encode ---- */

enum status client_request_decode(const uint8_t *frame, size_t length,
                                  struct client_request *out_request, struct wire_error *out_error)
{
    struct wire_decoding decoding = {&client_request_family, WIRE_STRICT, frame, length};
    const struct wire_table *table;
    enum status status =
        wire_decode(&decoding, &out_request->submit, &table, &out_request->named, out_error);
    if (status != STATUS_OK)
        return status;
    out_request->type = (enum client_request_type)table->number;
    return judge_request(out_request, out_error) ? STATUS_OK : STATUS_BAD_MESSAGE;
}

enum status client_answer_decode(const uint8_t *frame, size_t length,
                                 struct client_answer *out_answer, struct wire_error *out_error)
{
    struct wire_decoding decoding = {&client_answer_family, WIRE_LENIENT, frame, length};
    const struct wire_table *table;
    enum status status =
        wire_decode(&decoding, &out_answer->error, &table, &out_answer->named, out_error);
    if (status == STATUS_OK)
        out_answer->type = (enum client_answer_type)table->number;
    return status;
}

enum status client_request_encode(const struct client_request *request, uint8_t *out,
                                  size_t capacity, size_t *out_bytes)
{
    return wire_encode(wire_family_table(&client_request_family, request->type),
                       request->named ? WIRE_NAMED : WIRE_NUMBERED, &request->submit, out, capacity,
                       out_bytes);
}

enum status client_answer_encode(const struct client_answer *answer, uint8_t *out, size_t capacity,
                                 size_t *out_bytes)
{
    return wire_encode(wire_family_table(&client_answer_family, answer->type),
                       answer->named ? WIRE_NAMED : WIRE_NUMBERED, &answer->error, out, capacity,
                       out_bytes);
}

struct client_answer client_answer_refusal(const struct wire_error *error, bool named)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_ERROR, .named = named};
    answer.error.code = (enum error_code)error->code;
    answer.error.has_field = error->field[0] != '\0';
    answer.error.field = wire_text_of(error->field);
    answer.error.message = wire_text_of(error->message);
    answer.error.has_limit = error->has_limit;
    answer.error.limit = error->limit;
    return answer;
}

/* ---- Body hash ---- */

static void hash_bytes(void *context, const void *bytes, size_t length)
{
    CHECK(XXH3_128bits_update(context, bytes, length) == XXH_OK);
}

struct id128 client_submit_body_hash(const struct client_submit *submit)
{
    struct client_submit body = *submit;
    body.has_version = false;
    body.id = wire_text_of("");
    /* What is absent means its default: the same body either way. */
    body.has_top_p = true;
    body.top_p = submit->has_top_p ? submit->top_p : 1.0F;
    body.has_parse_special = true;
    body.parse_special = submit->has_parse_special ? submit->parse_special : true;
    XXH3_state_t state;
    CHECK(XXH3_128bits_reset(&state) == XXH_OK);
    wire_encode_to(&client_submit_table, WIRE_NUMBERED, &body, hash_bytes, &state);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    struct id128 hash;
    memcpy(hash.bytes, canonical.digest, sizeof hash.bytes);
    return hash;
}

bool chat_message_next(const struct wire_list *messages, const uint8_t **cursor,
                       struct chat_message *out_message)
{
    return wire_list_next(messages, &chat_message_table, cursor, out_message);
}

bool client_model_next(const struct wire_list *models, const uint8_t **cursor,
                       struct client_model *out_model)
{
    return wire_list_next(models, &client_model_table, cursor, out_model);
}
