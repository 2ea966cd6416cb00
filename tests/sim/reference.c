#include "sim/reference.h"

#include "common/check.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Length of the longest stop that the text ends with. */
static size_t matched(const struct reference_spec *spec, const struct reference *run)
{
    size_t longest = 0;
    for (int i = 0; i < REFERENCE_STOPS; i++) {
        size_t length = strlen(spec->stops[i]);
        if (length > longest && length <= run->text_bytes &&
            memcmp(run->text + run->text_bytes - length, spec->stops[i], length) == 0)
            longest = length;
    }
    return longest;
}

static void end(struct reference *run, enum finish_reason reason, enum error_code code)
{
    run->reason = reason;
    run->code = code;
}

static void take(const struct reference_spec *spec, const struct script *script, uint32_t token,
                 struct reference *run)
{
    bool is_end = token == script->end_token && !spec->ignore_eos;
    run->tokens[run->token_count++] = token;
    if (is_end || (spec->has_stop_token && token == spec->stop_token)) {
        end(run, FINISH_REASON_STOP, ERROR_CODE_UNKNOWN);
        return;
    }
    if (token < 256)
        run->text[run->text_bytes++] = (char)token;
    size_t stop = token < 256 ? matched(spec, run) : 0;
    run->uncut_bytes = run->text_bytes;
    run->text_bytes -= (uint32_t)stop;
    if (stop > 0)
        end(run, FINISH_REASON_STOP, ERROR_CODE_UNKNOWN);
    else if (run->token_count == spec->max_tokens)
        end(run, FINISH_REASON_LENGTH, ERROR_CODE_UNKNOWN);
}

void reference_run(const struct reference_spec *spec, const struct script *script,
                   struct reference *out_reference)
{
    struct reference run = {0};
    uint64_t hash = SCRIPT_HASH_EMPTY;
    CHECK(spec->max_tokens <= REFERENCE_TOKENS);
    for (uint32_t i = 0; i < spec->prompt_tokens; i++)
        hash = script_hash(hash, spec->prompt[i]);
    while (run.reason == FINISH_REASON_UNKNOWN) {
        uint32_t token = script_token(script, hash, spec->seed);
        if (token == spec->numeric_error_token) {
            end(&run, FINISH_REASON_ERROR, ERROR_CODE_NUMERIC_ERROR);
            break;
        }
        uint64_t pair[2] = {run.logits_hash, script_logits_hash(hash, spec->seed)};
        run.logits_hash = XXH3_64bits(pair, sizeof pair);
        take(spec, script, token, &run);
        hash = script_hash(hash, token);
    }
    *out_reference = run;
}
