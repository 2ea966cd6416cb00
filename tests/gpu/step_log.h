/* The steps of a worker out of its log: lines of the event step_ended, which it writes at
 * --log-level debug. */
#ifndef TANDEM_TESTS_GPU_STEP_LOG_H
#define TANDEM_TESTS_GPU_STEP_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_LOG_MAX = 1 << 16 };

struct logged_step {
    uint64_t step, samples, seen_ns, begun_ns, ended_ns;
};

struct step_log {
    FILE *file;
    struct logged_step steps[STEP_LOG_MAX];
};

/* Steps that follow each other; inside the log's memory, until the next read. */
struct step_run {
    const struct logged_step *steps;
    uint32_t count;
};

static inline bool step_log_open(struct step_log *log, const char *path)
{
    log->file = fopen(path, "re");
    return log->file != NULL;
}

/* Leaves out what was written up to now. */
static inline void step_log_skip(struct step_log *log)
{
    fseek(log->file, 0, SEEK_END);
}

/* The number behind ` name=`; false: the line has none. */
static inline bool step_log_value(const char *line, const char *name, uint64_t *out_value)
{
    const char *at = strstr(line, name);
    if (at != NULL)
        *out_value = strtoull(at + strlen(name), NULL, 10);
    return at != NULL;
}

static inline bool step_log_line(const char *line, struct logged_step *out_step)
{
    return strstr(line, " event=step_ended ") != NULL &&
           step_log_value(line, " step=", &out_step->step) &&
           step_log_value(line, " samples=", &out_step->samples) &&
           step_log_value(line, " seen_ns=", &out_step->seen_ns) &&
           step_log_value(line, " begun_ns=", &out_step->begun_ns) &&
           step_log_value(line, " ended_ns=", &out_step->ended_ns);
}

/* The longest run of steps with `samples` samples each; false: there are no two of them. */
static inline bool step_log_read(struct step_log *log, uint32_t samples, struct step_run *out_run)
{
    char line[1024];
    uint32_t used = 0, first = 0;
    *out_run = (struct step_run){log->steps, 0};
    clearerr(log->file);
    while (used < STEP_LOG_MAX && fgets(line, sizeof line, log->file) != NULL) {
        struct logged_step step;
        if (!step_log_line(line, &step))
            continue;
        if (step.samples != samples || (used > first && log->steps[used - 1].step + 1 != step.step))
            first = used;
        if (step.samples == samples)
            log->steps[used++] = step;
        if (used - first > out_run->count)
            *out_run = (struct step_run){log->steps + first, used - first};
    }
    return out_run->count >= 2;
}

/* Share of the device's time between the end of a step and the begin of the next. */
static inline double step_run_idle(const struct step_run *run)
{
    uint64_t idle_ns = 0;
    for (uint32_t i = 1; i < run->count; i++)
        if (run->steps[i].begun_ns > run->steps[i - 1].ended_ns)
            idle_ns += run->steps[i].begun_ns - run->steps[i - 1].ended_ns;
    uint64_t all_ns = run->steps[run->count - 1].ended_ns - run->steps[0].ended_ns;
    return all_ns > 0 ? (double)idle_ns / (double)all_ns : 0;
}

#endif
