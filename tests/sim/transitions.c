#include "sim/transitions.h"

#include "common/check.h"
#include "coordinator/request.h"

#include <inttypes.h>
#include <stdio.h>

#define TRANSITION_TEXT(name, text) [TRANSITION_##name] = text,
static const char *const texts[] = {TRANSITION_LIST(TRANSITION_TEXT)};
#undef TRANSITION_TEXT

/* Of the whole process: the seams of the core have no argument to carry it. */
static uint64_t counts[TRANSITION_COUNT];

void transition_taken(enum transition transition)
{
    CHECK(transition > TRANSITION_NONE && transition < TRANSITION_COUNT);
    counts[transition]++;
}

uint64_t transition_times(enum transition transition)
{
    return counts[transition];
}

/* ---- From what the core knows ---- */

enum transition transition_of_fence(enum core_fence_reason reason)
{
    static const enum transition table[CORE_FENCE_REASON_COUNT] = {
        [CORE_FENCE_LOST] = TRANSITION_FENCE_LOST,
        [CORE_FENCE_SILENT] = TRANSITION_FENCE_SILENT,
        [CORE_FENCE_HUNG] = TRANSITION_FENCE_HUNG,
        [CORE_FENCE_NEVER_READY] = TRANSITION_FENCE_NEVER_READY,
        [CORE_FENCE_REFUSED] = TRANSITION_FENCE_REFUSED,
        [CORE_FENCE_MISMATCH] = TRANSITION_FENCE_MISMATCH,
        [CORE_FENCE_FATAL] = TRANSITION_FENCE_FATAL,
    };
    return reason < CORE_FENCE_REASON_COUNT ? table[reason] : TRANSITION_NONE;
}

enum transition transition_of_refusal(enum attach_refusal reason)
{
    static const enum transition table[ATTACH_REFUSAL_DRAINING + 1] = {
        [ATTACH_REFUSAL_VERSION] = TRANSITION_REFUSE_VERSION,
        [ATTACH_REFUSAL_MODEL] = TRANSITION_REFUSE_MODEL,
        [ATTACH_REFUSAL_ARITHMETIC] = TRANSITION_REFUSE_ARITHMETIC,
        [ATTACH_REFUSAL_GEOMETRY] = TRANSITION_REFUSE_GEOMETRY,
        [ATTACH_REFUSAL_CAPACITY] = TRANSITION_REFUSE_CAPACITY,
        [ATTACH_REFUSAL_UID] = TRANSITION_REFUSE_UID,
        [ATTACH_REFUSAL_MALFORMED] = TRANSITION_REFUSE_MALFORMED,
        [ATTACH_REFUSAL_STANDBYS] = TRANSITION_REFUSE_STANDBYS,
        [ATTACH_REFUSAL_ABANDONED] = TRANSITION_REFUSE_ABANDONED,
        [ATTACH_REFUSAL_DRAINING] = TRANSITION_REFUSE_DRAINING,
    };
    return reason <= ATTACH_REFUSAL_DRAINING ? table[reason] : TRANSITION_NONE;
}

enum transition transition_of_submit_error(enum error_code code)
{
    switch (code) {
    case ERROR_CODE_IDEMPOTENCY_CONFLICT:
        return TRANSITION_SUBMIT_CONFLICT;
    case ERROR_CODE_INVALID_REQUEST:
        return TRANSITION_SUBMIT_INVALID;
    case ERROR_CODE_TOO_LARGE:
        return TRANSITION_SUBMIT_TOO_LARGE;
    case ERROR_CODE_PROMPT_TOO_LONG:
        return TRANSITION_SUBMIT_PROMPT_TOO_LONG;
    case ERROR_CODE_OVERLOADED:
        return TRANSITION_SUBMIT_OVERLOADED;
    case ERROR_CODE_DRAINING:
        return TRANSITION_SUBMIT_DRAINING;
    case ERROR_CODE_CANCELLED:
        return TRANSITION_SUBMIT_CANCELLED;
    case ERROR_CODE_DEADLINE_EXCEEDED:
        return TRANSITION_SUBMIT_DEADLINE;
    case ERROR_CODE_UNSUPPORTED:
        return TRANSITION_SUBMIT_UNSUPPORTED;
    default:
        return TRANSITION_NONE;
    }
}

enum transition transition_of_move(enum request_state from, enum request_state to)
{
    static const enum transition table[REQUEST_STATE_FINISHED + 1][REQUEST_STATE_FINISHED + 1] = {
        [REQUEST_STATE_TOKENIZING] = {[REQUEST_STATE_QUEUED] = TRANSITION_TOKENIZING_QUEUED,
                                      [REQUEST_STATE_FINISHED] = TRANSITION_TOKENIZING_FINISHED},
        [REQUEST_STATE_QUEUED] = {[REQUEST_STATE_RUNNING] = TRANSITION_QUEUED_RUNNING,
                                  [REQUEST_STATE_FINISHED] = TRANSITION_QUEUED_FINISHED},
        [REQUEST_STATE_RUNNING] = {[REQUEST_STATE_QUEUED] = TRANSITION_RUNNING_QUEUED,
                                   [REQUEST_STATE_PREEMPTED] = TRANSITION_RUNNING_PREEMPTED,
                                   [REQUEST_STATE_FINISHED] = TRANSITION_RUNNING_FINISHED},
        [REQUEST_STATE_PREEMPTED] = {[REQUEST_STATE_RUNNING] = TRANSITION_PREEMPTED_RUNNING,
                                     [REQUEST_STATE_FINISHED] = TRANSITION_PREEMPTED_FINISHED},
    };
    return table[from][to];
}

enum transition transition_of_outcome(enum finish_reason reason, enum error_code code)
{
    switch (reason) {
    case FINISH_REASON_STOP:
        return TRANSITION_OUTCOME_STOP;
    case FINISH_REASON_LENGTH:
        return TRANSITION_OUTCOME_LENGTH;
    case FINISH_REASON_CANCELLED:
        return TRANSITION_OUTCOME_CANCELLED;
    default:
        break;
    }
    switch (code) {
    case ERROR_CODE_NUMERIC_ERROR:
        return TRANSITION_OUTCOME_NUMERIC;
    case ERROR_CODE_DEADLINE_EXCEEDED:
        return TRANSITION_OUTCOME_DEADLINE;
    case ERROR_CODE_DRAINING:
        return TRANSITION_OUTCOME_DRAINING;
    case ERROR_CODE_OVERLOADED:
        return TRANSITION_OUTCOME_OVERLOADED;
    case ERROR_CODE_INTERNAL:
        return TRANSITION_OUTCOME_INTERNAL;
    case ERROR_CODE_POISONED:
        return TRANSITION_OUTCOME_POISONED;
    default:
        return TRANSITION_NONE;
    }
}

void transitions_check_table(void)
{
    for (uint32_t from = REQUEST_STATE_TOKENIZING; from <= REQUEST_STATE_FINISHED; from++) {
        for (uint32_t to = REQUEST_STATE_TOKENIZING; to <= REQUEST_STATE_FINISHED; to++)
            CHECK(request_may_move(from, to) == (transition_of_move(from, to) != TRANSITION_NONE));
    }
    for (uint32_t reason = 1; reason < CORE_FENCE_REASON_COUNT; reason++)
        CHECK(transition_of_fence(reason) != TRANSITION_NONE);
    for (uint32_t i = 0; i < attach_refusal_enum.count; i++) {
        enum attach_refusal reason = attach_refusal_enum.values[i].number;
        CHECK((reason != ATTACH_REFUSAL_SEGMENT) == /* that one is the port's */
              (transition_of_refusal(reason) != TRANSITION_NONE));
    }
}

uint32_t transitions_print(uint64_t times)
{
    uint32_t rare = 0;
    for (uint32_t i = TRANSITION_NONE + 1; i < TRANSITION_COUNT; i++) {
        bool is_rare = counts[i] < times;
        printf("%12" PRIu64 "  %s%s\n", counts[i], texts[i], is_rare ? "  <- too rare" : "");
        rare += is_rare;
    }
    return rare;
}
