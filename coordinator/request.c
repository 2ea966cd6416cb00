#include "coordinator/request.h"

#include "common/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BIT(state) (1u << REQUEST_STATE_##state)

/* The life cycle. A worker's end sends RUNNING back to QUEUED; want of blocks makes it PREEMPTED.
 */
static const uint32_t moves[] = {
    [REQUEST_STATE_TOKENIZING] = BIT(QUEUED) | BIT(FINISHED),
    [REQUEST_STATE_QUEUED] = BIT(RUNNING) | BIT(FINISHED),
    [REQUEST_STATE_RUNNING] = BIT(QUEUED) | BIT(PREEMPTED) | BIT(FINISHED),
    [REQUEST_STATE_PREEMPTED] = BIT(RUNNING) | BIT(FINISHED),
    [REQUEST_STATE_FINISHED] = 0,
};

bool request_may_move(enum request_state from, enum request_state to)
{
    CHECK(from < sizeof moves / sizeof *moves);
    return (moves[from] & (1u << to)) != 0;
}

uint32_t request_released_tokens(const struct request *request)
{
    return request_is_finished(request) ? request->accepted : request->detokenizer.released_tokens;
}

const uint32_t *request_output_tokens(const struct request *request)
{
    if (request->tokens == NULL)
        return NULL;
    return request_is_finished(request) ? request->tokens
                                        : request->tokens + request->prompt_tokens;
}

bool request_stops_at(const struct request *request, const struct vocabulary *vocabulary,
                      uint32_t token)
{
    if (!request->ignore_eos && vocabulary_is_end(vocabulary, token))
        return true;
    for (uint32_t i = 0; i < request->stop_token_count; i++) {
        if (request->stop_tokens[i] == token)
            return true;
    }
    return false;
}

uint64_t request_fold_hash(uint64_t hash, uint64_t row_hash)
{
    uint8_t bytes[16];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(hash >> (8 * i));
        bytes[8 + i] = (uint8_t)(row_hash >> (8 * i));
    }
    return XXH3_64bits(bytes, sizeof bytes);
}
