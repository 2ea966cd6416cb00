/* Whether a request may be what ends workers. A worker that dies while it executes a plan blames
 * nobody at first: operators kill workers, machines fail. Blame takes evidence.
 *   - A request whose positions were being executed notes them as its suspected range. What is
 * executed later without harm is cleared and leaves the range; all of it: the request is cleared.
 * If a worker dies again in the range, SUSPICION_CRASHES_FOR_TRIAL times in all, it is executed
 * alone from then on. Deaths on the way to the range add nothing: those positions were cleared.
 *   - A death in such a trial is evidence: strong if that worker had answered a step before (it can
 *     work), weak otherwise. Where others wait, whose steps can tell a bad request from a bad
 *     worker, weak evidence counts for little once they may pass. Any progress inside the range
 *     takes the evidence back. SUSPICION_EVIDENCE_FOR_VERDICT of it is the verdict: poisoned.
 * So a random kill -9 clears itself with the next steps, and a verdict takes at least seven workers
 * lost in one place, five of them in a step that held nothing else. Five, because kills may come
 * fast: where one trial in twenty is hit by chance, a chain of five is one in three million.
 *   - First tokens come in order of submission, so a suspect without one holds back those behind it
 * that have none either: until SUSPICION_EVIDENCE_TO_BE_OVERTAKEN, three deaths alone, since one
 * request may hurt only itself. By chance that is one trial in eight thousand. */
#ifndef TANDEM_COORDINATOR_SUSPICION_H
#define TANDEM_COORDINATOR_SUSPICION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SUSPICION_CRASHES_FOR_TRIAL = 2,
    SUSPICION_EVIDENCE_STRONG = 20,
    SUSPICION_EVIDENCE_WEAK = 10,
    SUSPICION_EVIDENCE_DOUBTFUL = 1,
    SUSPICION_EVIDENCE_TO_BE_OVERTAKEN = 60,
    SUSPICION_EVIDENCE_FOR_VERDICT = 100,
};

/* Embedded in the request; zeroed = clear. */
struct suspicion {
    uint32_t first, end; /* suspected positions; meaningful with crashes > 0 */
    uint32_t crashes;
    uint32_t evidence;
};

/* A worker died while positions first .. end-1 were executed together with other requests' rows. */
void suspicion_crashed(struct suspicion *suspicion, uint32_t first, uint32_t end);

/* What is known of a worker that died. */
enum suspicion_worker {
    SUSPICION_WORKER_WORKED = 1, /* it had answered a step */
    SUSPICION_WORKER_UNKNOWN,    /* it had not, and nobody else has anything to compute */
    SUSPICION_WORKER_DOUBTFUL,   /* it had not, and others wait: they will show whether workers work
                                  */
};

/* A worker died while they were executed alone. True: the verdict is reached. */
bool suspicion_crashed_alone(struct suspicion *suspicion, uint32_t first, uint32_t end,
                             enum suspicion_worker worker);

/* Positions up to `end` were executed and the worker lived. */
void suspicion_passed(struct suspicion *suspicion, uint32_t end);

/* Whether others wait for its first token although it has to wait for a trial. */
bool suspicion_holds_order(const struct suspicion *suspicion);

/* Whether a row that begins at `first` must be alone in its plan, and how many of its `count`
 * positions it may have: a row ends where the suspected range begins, and where it ends. */
bool suspicion_wants_trial(const struct suspicion *suspicion, uint32_t first);
uint32_t suspicion_clip(const struct suspicion *suspicion, uint32_t first, uint32_t count);

#endif
