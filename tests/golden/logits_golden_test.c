/* The default model against committed numbers of the oracle (logits_oracle.py, fp32 on the same
 * dequantized weights): the eight largest logits and the logarithm of the sum of all exponentials,
 * at some positions of some prompts.
 *
 * usage: logits_golden_test GOLDEN_FILE     the model: $TANDEM_TEST_MODEL, else the one in the
 * user's cache folder */
#include "golden/token_runner.h"

#include <inttypes.h>
#include <math.h>

enum { TOP = 8, CHUNK = 128, LINE_BYTES = 1 << 16, PATH_BYTES = 4096 };

/* The same bounds as in the full comparison. A larger gap than GAP between the oracle's first two
 * must keep their order. */
static const double LOGIT_BOUND = 0.1, GAP = 0.2;

/* What one line of the golden file says. */
struct expectation {
    uint32_t position;
    double log_sum;
    uint32_t ids[TOP];
    double logits[TOP];
};

struct comparison {
    const struct token_runner *runner;
    const struct expectation *expectations;
    uint32_t count;
    uint32_t seen;
    uint32_t prompt;
    uint32_t failures;
    double worst;
};

static double log_sum_exp(const float *logits, uint32_t count)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < count; i++)
        largest = (double)logits[i] > largest ? (double)logits[i] : largest;
    for (uint32_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

static void compare_value(struct comparison *comparison, uint32_t position, const char *what,
                          double ours, double theirs)
{
    double difference = fabs(ours - theirs);
    if (!(difference <= comparison->worst))
        comparison->worst = difference;
    if (difference <= LOGIT_BOUND)
        return;
    comparison->failures++;
    fprintf(stderr, "prompt %" PRIu32 " position %" PRIu32 ": %s is %.6f, the oracle has %.6f\n",
            comparison->prompt, position, what, ours, theirs);
}

static void compare(struct comparison *comparison, const struct expectation *expected,
                    const float *logits)
{
    uint32_t vocabulary = comparison->runner->model.shape.vocabulary, best = 0;
    char what[32];
    for (uint32_t i = 0; i < TOP; i++) {
        snprintf(what, sizeof what, "logit %" PRIu32, expected->ids[i]);
        compare_value(comparison, expected->position, what, (double)logits[expected->ids[i]],
                      expected->logits[i]);
    }
    compare_value(comparison, expected->position, "log sum", log_sum_exp(logits, vocabulary),
                  expected->log_sum);
    for (uint32_t i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    if (best != expected->ids[0] && expected->logits[0] - expected->logits[1] > GAP) {
        comparison->failures++;
        fprintf(stderr,
                "prompt %" PRIu32 " position %" PRIu32 ": first is %" PRIu32 ", not %" PRIu32 "\n",
                comparison->prompt, expected->position, best, expected->ids[0]);
    }
}

static void take_logits(void *context, uint32_t first, uint32_t rows, const float *logits)
{
    struct comparison *comparison = context;
    for (uint32_t i = 0; i < comparison->count; i++) {
        const struct expectation *expected = &comparison->expectations[i];
        if (expected->position < first || expected->position - first >= rows)
            continue;
        comparison->seen++;
        compare(comparison, expected,
                logits + (size_t)(expected->position - first) *
                             comparison->runner->model.shape.vocabulary);
    }
}

/* "at POSITION LOGSUM ID:LOGIT x 8" */
static bool parse_expectation(char *line, struct expectation *out_expectation)
{
    char *rest = line + strlen("at ");
    out_expectation->position = (uint32_t)strtoul(rest, &rest, 10);
    out_expectation->log_sum = strtod(rest, &rest);
    for (uint32_t i = 0; i < TOP; i++) {
        out_expectation->ids[i] = (uint32_t)strtoul(rest, &rest, 10);
        if (*rest != ':')
            return false;
        out_expectation->logits[i] = strtod(rest + 1, &rest);
    }
    return *rest == '\n';
}

/* "prompt COUNT ID ..." */
static uint32_t parse_prompt(char *line, struct token_runner *runner)
{
    char *rest = line + strlen("prompt ");
    uint32_t count = (uint32_t)strtoul(rest, &rest, 10);
    if (count == 0 || count > runner->context)
        runner_fail("golden file", "a prompt is empty or too long");
    for (uint32_t i = 0; i < count; i++)
        runner->ids[i] = (uint32_t)strtoul(rest, &rest, 10);
    if (*rest != '\n')
        runner_fail("golden file", "a prompt has another length than it says");
    return count;
}

static void model_path(char out_path[PATH_BYTES])
{
    const char *given = getenv("TANDEM_TEST_MODEL"), *home = getenv("HOME");
    const char *cache = getenv("XDG_CACHE_HOME");
    if (given != NULL)
        snprintf(out_path, PATH_BYTES, "%s", given);
    else if (cache != NULL && cache[0] != '\0')
        snprintf(out_path, PATH_BYTES, "%s/tandem/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(out_path, PATH_BYTES, "%s/.cache/tandem/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home == NULL ? "" : home);
}

static void run_file(FILE *file, struct token_runner *runner, struct comparison *comparison)
{
    static char line[LINE_BYTES];
    static struct expectation expectations[256];
    uint32_t prompt_ids = 0;
    comparison->expectations = expectations;
    for (bool more = true; more;) {
        more = fgets(line, sizeof line, file) != NULL;
        if (more && strncmp(line, "at ", 3) == 0) {
            CHECK(comparison->count < sizeof expectations / sizeof expectations[0]);
            if (!parse_expectation(line, &expectations[comparison->count++]))
                runner_fail("golden file", "a line cannot be read");
        }
        bool begins = more && strncmp(line, "prompt ", 7) == 0;
        if ((begins || !more) && prompt_ids > 0) {
            uint32_t seen_before = comparison->seen;
            runner_prompt(runner, prompt_ids, take_logits, comparison);
            CHECK(comparison->seen - seen_before == comparison->count);
            comparison->prompt++;
            comparison->count = 0;
        }
        if (begins)
            prompt_ids = parse_prompt(line, runner);
    }
}

int main(int argc, char **argv)
{
    char path[PATH_BYTES];
    struct token_runner runner = {.chunk = CHUNK};
    struct comparison comparison = {.runner = &runner};
    const struct backend_options options = {.kind = BACKEND_CPU};
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (file == NULL)
        runner_fail("usage", "logits_golden_test GOLDEN_FILE");
    model_path(path);
    runner_open(&runner, path, &options);
    run_file(file, &runner, &comparison);
    fclose(file);
    runner_close(&runner);
    printf("%" PRIu32 " prompts, %" PRIu32 " positions, largest difference %.4f, %" PRIu32
           " failures\n",
           comparison.prompt, comparison.seen, comparison.worst, comparison.failures);
    return comparison.failures == 0 && comparison.seen > 0 ? 0 : 1;
}
