/* What the pair costs a client: a coordinator, a scripted worker whose steps take a fixed time, one
 * client that streams. Printed is the time from token to token as the client sees it, less the
 * step.
 *
 * usage: pair_bench FOLDER_OF_PROGRAMS MODEL [STEP_US [TOKENS]] */
#include "client/tandem.h"
#include "common/clock.h"
#include "common/run_directory.h"

#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS_PER_REQUEST = 2000, WARM_TOKENS = 50, PATH_BYTES = 512 };

struct pair {
    char folder[32];
    pid_t coordinator, worker;
};

static pid_t start(const char *folder, const char *name, char *const *arguments)
{
    extern char **environ;
    char path[PATH_BYTES];
    pid_t pid;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (posix_spawn(&pid, path, NULL, NULL, arguments, environ) != 0) {
        fprintf(stderr, "pair_bench: cannot start %s\n", path);
        exit(1);
    }
    return pid;
}

static void start_pair(struct pair *pair, const char *programs, char *model, char *step_us)
{
    *pair = (struct pair){.folder = "/tmp/tandem-pair-XXXXXX"};
    if (mkdtemp(pair->folder) == NULL)
        exit(1);
    char run_dir[] = "--run-dir", model_option[] = "--model", pool[] = "--kv-pool-bytes=64M",
         level[] = "--log-level=warn", name[] = "pair";
    char *coordinator[] = {name, run_dir, pair->folder, model_option, model, pool, level, NULL};
    char *worker[] = {name, pair->folder, model, step_us, NULL};
    pair->coordinator = start(programs, "tandem-coordinator", coordinator);
    pair->worker = start(programs, "scripted_worker", worker);
}

static void stop_pair(const struct pair *pair)
{
    char lock[PATH_BYTES];
    kill(pair->worker, SIGTERM);
    waitpid(pair->worker, NULL, 0);
    kill(pair->coordinator, SIGTERM);
    waitpid(pair->coordinator, NULL, 0);
    snprintf(lock, sizeof lock, "%s/" RUN_LOCK_NAME, pair->folder);
    unlink(lock);
    rmdir(pair->folder);
}

static struct tandem *connect_ready(const struct pair *pair)
{
    struct tandem_settings settings = {.run_dir = pair->folder};
    struct tandem_error error;
    struct tandem_health health = {0};
    struct tandem *tandem = NULL;
    uint64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
    while (!health.ready && clock_now_ns() < end_ns) {
        if (tandem == NULL && tandem_open(&settings, &tandem, &error) != TANDEM_OK)
            tandem = NULL;
        if (tandem != NULL && tandem_health(tandem, &health, &error) != TANDEM_OK)
            health.ready = false;
        usleep(10000);
    }
    if (!health.ready) {
        fprintf(stderr, "pair_bench: the pair does not get ready\n");
        exit(1);
    }
    return tandem;
}

/* Appends the times between tokens; tokens that came together share theirs. Returns the new count.
 */
static size_t stream(struct tandem *tandem, double *gaps_us, size_t count, size_t wanted)
{
    struct tandem_request request = {
        .prompt = "Once upon a time", .max_tokens = TOKENS_PER_REQUEST, .ignore_eos = true};
    struct tandem_stream *reader;
    struct tandem_error error;
    struct tandem_output output = {0};
    if (tandem_submit(tandem, &request, &reader, &error) != TANDEM_OK) {
        fprintf(stderr, "pair_bench: %s\n", error.message);
        exit(1);
    }
    uint64_t last_ns = 0;
    size_t seen = 0;
    while (!output.finished) {
        if (tandem_next(reader, TANDEM_WAIT_MS_MAX, 1, &output, &error) != TANDEM_OK) {
            fprintf(stderr, "pair_bench: %s\n", error.message);
            exit(1);
        }
        uint64_t now_ns = clock_now_ns();
        double gap_us = (double)(now_ns - last_ns) / 1e3 / (double)output.token_count;
        for (size_t i = 0; i < output.token_count; i++, seen++)
            if (seen >= WARM_TOKENS && count < wanted)
                gaps_us[count++] = gap_us;
        if (output.token_count > 0)
            last_ns = now_ns;
    }
    tandem_stream_close(reader);
    return count;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: pair_bench FOLDER_OF_PROGRAMS MODEL [STEP_US [TOKENS]]\n");
        return 64;
    }
    char standard_step[] = "600";
    char *step = argc > 3 ? argv[3] : standard_step;
    size_t wanted = argc > 4 ? strtoul(argv[4], NULL, 10) : 10000;
    double *gaps_us = calloc(wanted, sizeof *gaps_us);
    struct pair pair;
    start_pair(&pair, argv[1], argv[2], step);
    struct tandem *tandem = connect_ready(&pair);
    size_t count = 0;
    while (count < wanted)
        count = stream(tandem, gaps_us, count, wanted);
    qsort(gaps_us, count, sizeof *gaps_us, by_size);
    double step_us = strtod(step, NULL), sum_us = 0;
    for (size_t i = 0; i < count; i++)
        sum_us += gaps_us[i];
    printf("pair: step %.0f us, %zu tokens of one stream: per token less the step: median %.1f us, "
           "mean %.1f us, p99 %.1f us (%.0f tokens/s)\n",
           step_us, count, gaps_us[count / 2] - step_us, sum_us / (double)count - step_us,
           gaps_us[count * 99 / 100] - step_us, (double)count * 1e6 / sum_us);
    tandem_close(tandem);
    stop_pair(&pair);
    free(gaps_us);
    return 0;
}
