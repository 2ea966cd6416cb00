/* A frame of a client, and the same bytes as an answer at the client's side. What is accepted is
 * walked, encoded in both styles, and must be accepted again with the same body. */
#include "proto/client_messages.h"

#include "common/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static uint8_t frame[1 << 20];

static void walk_messages(const struct wire_list *messages)
{
    struct chat_message message;
    const uint8_t *cursor = messages->encoded;
    uint32_t count = 0;
    while (chat_message_next(messages, &cursor, &message)) {
        CHECK(message.role.length >= 1 && message.role.length <= LIMIT_CHAT_ROLE_BYTES);
        count++;
    }
    CHECK(count == messages->count);
}

static void check_submit(const struct client_submit *submit)
{
    static uint32_t ids[LIMIT_CONTEXT_TOKENS];
    CHECK(submit->id.length >= 1 && submit->id.length <= LIMIT_REQUEST_ID_BYTES);
    CHECK(submit->has_prompt + submit->has_ids + submit->has_messages == 1);
    CHECK(submit->temperature >= 0 && submit->temperature <= LIMIT_TEMPERATURE);
    CHECK(!submit->has_top_p || (submit->top_p > 0 && submit->top_p <= 1));
    uint32_t count = wire_tokens_copy(&submit->ids, ids, LIMIT_CONTEXT_TOKENS);
    for (uint32_t i = 0; i < count; i++)
        CHECK(ids[i] < LIMIT_VOCABULARY);
    if (submit->has_messages)
        walk_messages(&submit->messages);
}

static void try_request(const uint8_t *bytes, size_t length)
{
    struct client_request request, again;
    struct wire_error error;
    if (client_request_decode(bytes, length, &request, &error) != STATUS_OK) {
        struct client_answer refusal = client_answer_refusal(&error, request.named);
        size_t refusal_bytes;
        CHECK(error.message[0] != '\0');
        CHECK(client_answer_encode(&refusal, frame, sizeof frame, &refusal_bytes) == STATUS_OK);
        CHECK(client_answer_decode(frame, refusal_bytes, &refusal, &error) == STATUS_OK);
        return;
    }
    if (request.type == CLIENT_SUBMIT)
        check_submit(&request.submit);
    for (int style = 0; style < 2; style++) {
        size_t encoded;
        request.named = style == 1;
        CHECK(client_request_encode(&request, frame, sizeof frame, &encoded) == STATUS_OK);
        CHECK(client_request_decode(frame, encoded, &again, &error) == STATUS_OK);
        CHECK(again.type == request.type && again.named == request.named);
        if (request.type != CLIENT_SUBMIT)
            continue;
        struct id128 first = client_submit_body_hash(&request.submit);
        struct id128 second = client_submit_body_hash(&again.submit);
        CHECK(id128_equal(&first, &second));
    }
}

static void try_answer(const uint8_t *bytes, size_t length)
{
    struct client_answer answer, again;
    struct wire_error error;
    if (client_answer_decode(bytes, length, &answer, &error) != STATUS_OK)
        return;
    size_t encoded;
    CHECK(client_answer_encode(&answer, frame, sizeof frame, &encoded) == STATUS_OK);
    CHECK(client_answer_decode(frame, encoded, &again, &error) == STATUS_OK);
    CHECK(again.type == answer.type);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length > sizeof frame / 16) /* named keys and bin heads make it longer */
        return 0;
    try_request(bytes, length);
    try_answer(bytes, length);
    return 0;
}
