#include "coordinator/suspicion.h"

#include "common/check.h"

void suspicion_crashed(struct suspicion *suspicion, uint32_t first, uint32_t end)
{
    CHECK(first < end);
    if (suspicion->crashes > 0 && end <= suspicion->first)
        return; /* it was on its way to the suspected range, through positions that are cleared */
    if (suspicion->crashes == 0 || suspicion->end <= first)
        *suspicion = (struct suspicion){.first = first, .end = end};
    suspicion->crashes++;
}

bool suspicion_crashed_alone(struct suspicion *suspicion, uint32_t first, uint32_t end,
                             enum suspicion_worker worker)
{
    suspicion_crashed(suspicion, first, end);
    if (worker == SUSPICION_WORKER_WORKED)
        suspicion->evidence += SUSPICION_EVIDENCE_STRONG;
    else if (worker == SUSPICION_WORKER_UNKNOWN ||
             suspicion->evidence < SUSPICION_EVIDENCE_TO_BE_OVERTAKEN)
        suspicion->evidence += SUSPICION_EVIDENCE_WEAK;
    else
        suspicion->evidence += SUSPICION_EVIDENCE_DOUBTFUL;
    return suspicion->evidence >= SUSPICION_EVIDENCE_FOR_VERDICT;
}

void suspicion_passed(struct suspicion *suspicion, uint32_t end)
{
    if (suspicion->crashes == 0 || end <= suspicion->first)
        return;
    if (end >= suspicion->end) {
        *suspicion = (struct suspicion){0};
    } else {
        suspicion->first = end;
        suspicion->evidence = 0;
    }
}

static bool is_suspect(const struct suspicion *suspicion)
{
    return suspicion->crashes >= SUSPICION_CRASHES_FOR_TRIAL;
}

bool suspicion_holds_order(const struct suspicion *suspicion)
{
    return is_suspect(suspicion) && suspicion->evidence < SUSPICION_EVIDENCE_TO_BE_OVERTAKEN;
}

bool suspicion_wants_trial(const struct suspicion *suspicion, uint32_t first)
{
    return is_suspect(suspicion) && first >= suspicion->first && first < suspicion->end;
}

uint32_t suspicion_clip(const struct suspicion *suspicion, uint32_t first, uint32_t count)
{
    if (!is_suspect(suspicion) || first >= suspicion->end)
        return count;
    uint32_t border = first < suspicion->first ? suspicion->first : suspicion->end;
    return border - first < count ? border - first : count;
}
