/* Every transition that the core can take, in one table, and how often the simulator took it. Those
 * inside of the core are seen at the seams between its modules (seams.c), through the
 * linker: the core itself is the one that serves. The others are seen in what it says. */
#ifndef TANDEM_TESTS_SIM_TRANSITIONS_H
#define TANDEM_TESTS_SIM_TRANSITIONS_H

#include "coordinator/core.h"

/* clang-format off */
#define TRANSITION_LIST(X) \
    X(SUBMITTED, "request: submitted -> tokenizing") \
    X(TOKENIZING_QUEUED, "request: tokenizing -> queued") \
    X(TOKENIZING_FINISHED, "request: tokenizing -> finished") \
    X(TOKENIZING_REFUSED, "request: tokenizing -> refused, gone") \
    X(QUEUED_RUNNING, "request: queued -> running") \
    X(QUEUED_FINISHED, "request: queued -> finished") \
    X(RUNNING_QUEUED, "request: running -> queued (worker lost)") \
    X(RUNNING_PREEMPTED, "request: running -> preempted") \
    X(RUNNING_FINISHED, "request: running -> finished") \
    X(PREEMPTED_RUNNING, "request: preempted -> running") \
    X(PREEMPTED_FINISHED, "request: preempted -> finished") \
    X(FINISHED_EVICTED, "request: finished -> gone (room)") \
    X(FINISHED_EXPIRED, "request: finished -> gone (time)") \
    X(OUTCOME_STOP, "outcome: stop") \
    X(OUTCOME_LENGTH, "outcome: length") \
    X(OUTCOME_CANCELLED, "outcome: cancelled") \
    X(OUTCOME_ORPHANED, "outcome: cancelled because nobody asked") \
    X(OUTCOME_NUMERIC, "outcome: numeric_error") \
    X(OUTCOME_DEADLINE, "outcome: deadline_exceeded") \
    X(OUTCOME_DRAINING, "outcome: draining") \
    X(OUTCOME_OVERLOADED, "outcome: overloaded") \
    X(OUTCOME_INTERNAL, "outcome: internal (three refusals)") \
    X(OUTCOME_POISONED, "outcome: poisoned") \
    X(SUSPECTED, "suspicion: died with others") \
    X(SUSPECTED_ALONE, "suspicion: died alone") \
    X(SUSPICION_CLEARED, "suspicion: cleared") \
    X(WORKER_STANDBY, "worker: hello -> standby") \
    X(WORKER_STANDBY_LOST, "worker: standby -> gone") \
    X(WORKER_ATTACHING, "worker: hello -> attaching") \
    X(WORKER_PROMOTED, "worker: standby -> attaching") \
    X(WORKER_ATTACHED, "worker: attaching -> attached") \
    X(WORKER_READY, "worker: attached -> ready") \
    X(WORKER_END_ATTACHING, "worker: attaching -> fenced") \
    X(WORKER_END_ATTACHED, "worker: attached -> fenced") \
    X(WORKER_END_READY, "worker: ready -> fenced") \
    X(EPOCH_CLOSED, "worker: abandoned epoch -> closed") \
    X(FENCE_LOST, "fence: lost") \
    X(FENCE_SILENT, "fence: silent") \
    X(FENCE_HUNG, "fence: hung") \
    X(FENCE_NEVER_READY, "fence: never ready") \
    X(FENCE_REFUSED, "fence: plan refused") \
    X(FENCE_MISMATCH, "fence: mismatch") \
    X(FENCE_FATAL, "fence: fatal") \
    X(REFUSE_VERSION, "attach refused: version") \
    X(REFUSE_MODEL, "attach refused: model") \
    X(REFUSE_ARITHMETIC, "attach refused: arithmetic") \
    X(REFUSE_GEOMETRY, "attach refused: geometry") \
    X(REFUSE_CAPACITY, "attach refused: capacity") \
    X(REFUSE_UID, "attach refused: uid") \
    X(REFUSE_MALFORMED, "attach refused: malformed (second hello)") \
    X(REFUSE_STANDBYS, "attach refused: standbys") \
    X(REFUSE_ABANDONED, "attach refused: abandoned epochs") \
    X(REFUSE_DRAINING, "attach refused: draining") \
    X(PLAN_FIRST, "plan: to an idle worker") \
    X(PLAN_SECOND, "plan: while another is in flight") \
    X(PLAN_TRIAL, "plan: a suspect alone") \
    X(RESULT_TAKEN, "result: taken") \
    X(RESULT_STALE, "result: stale, dropped") \
    X(RESULT_TWICE, "result: twice -> mismatch") \
    X(RESULT_DISORDERED, "result: before its turn -> mismatch") \
    X(RESULT_LIE, "result: not what was asked -> mismatch") \
    X(REFUSAL_STALE, "refusal: stale, dropped") \
    X(OTHER_STALE, "ready, fatal: stale, dropped") \
    X(NONSENSE, "frame: nonsense -> mismatch") \
    X(ROW_OF_FINISHED, "row: dropped, its request has ended") \
    X(ROW_AFTER_PREEMPTION, "row: accepted after the preemption") \
    X(TOKENIZED, "tokenized: ids") \
    X(TOKENIZED_FAILED, "tokenized: a reason") \
    X(TOKENIZED_LATE, "tokenized: nobody wants it any more") \
    X(POLL_AT_ONCE, "next: answered at once") \
    X(POLL_NEWS, "next: parked -> news") \
    X(POLL_EXPIRED, "next: parked -> waited long enough") \
    X(POLL_SHED, "next: parked -> room for another") \
    X(CALL_GONE, "call: its client went away") \
    X(SUBMIT_REPEATED, "submit: the same again") \
    X(SUBMIT_CONFLICT, "submit: idempotency_conflict") \
    X(SUBMIT_INVALID, "submit: invalid_request") \
    X(SUBMIT_TOO_LARGE, "submit: too_large") \
    X(SUBMIT_PROMPT_TOO_LONG, "submit: prompt_too_long") \
    X(SUBMIT_OVERLOADED, "submit: overloaded") \
    X(SUBMIT_DRAINING, "submit: draining") \
    X(SUBMIT_CANCELLED, "submit: cancelled before its ids") \
    X(SUBMIT_DEADLINE, "submit: deadline before its ids") \
    X(SUBMIT_UNSUPPORTED, "submit: unsupported") \
    X(NOT_FOUND, "call: not_found") \
    X(CURSOR_BEYOND, "next: cursor beyond the end") \
    X(DRAIN_STARTED, "drain: started") \
    X(DRAIN_TWICE, "drain: a second time") \
    X(DRAIN_LINGERS, "drain: running -> lingering") \
    X(DRAIN_DONE, "drain: lingering -> done") \
    X(TIME_BACKWARDS, "clock: backwards") \
    X(TIME_JUMPED, "clock: a year ahead") \
    X(MEMORY_FAILED, "memory: a request failed")
/* clang-format on */

#define TRANSITION_ENUM(name, text) TRANSITION_##name,
enum transition { TRANSITION_NONE = 0, TRANSITION_LIST(TRANSITION_ENUM) TRANSITION_COUNT };
#undef TRANSITION_ENUM

void transition_taken(enum transition transition);
uint64_t transition_times(enum transition transition);

/* By what the core says; TRANSITION_NONE: not one of the table. */
enum transition transition_of_fence(enum core_fence_reason reason);
enum transition transition_of_refusal(enum attach_refusal reason);
enum transition transition_of_submit_error(enum error_code code);
enum transition transition_of_move(enum request_state from, enum request_state to);
enum transition transition_of_outcome(enum finish_reason reason, enum error_code code);

/* CHECKs that the table has every move that the life cycle has, every reason for a fence, and every
 * reason for a refusal that is the core's. */
void transitions_check_table(void);

/* Prints the table; returns how many were taken less often than `times`, and names them. */
uint32_t transitions_print(uint64_t times);

#endif
