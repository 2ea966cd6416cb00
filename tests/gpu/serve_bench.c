/* The pair end to end on a device: N clients, each a stream of its own with a random prompt of ids,
 * through coordinator and sockets.
 *
 * usage: serve_bench [--worker-log FILE] [--processes N] RUN_DIR VOCABULARY CASE...
 *
 * CASE is STREAMS:PROMPT[-PROMPT]:TOKENS:HOLD[xTIMES]. HOLD: tokens of one reply; of two prompt
 * lengths each stream draws one between them; with TIMES the median of so many runs follows. FILE:
 * what a worker writes at --log-level debug. The clients are threads of N processes (8), each with
 * a connection of its own.
 *
 * Steady: what arrives after the last stream has its first token and before the first one is done.
 * A gap is the time between two arrivals of one stream. Out of the log, over the steps in which
 * every stream has a row: the share of time in which the device has no step, and the time from the
 * moment when the worker sees a token to that when its client has it (where replies hold tokens
 * back, the last token of a reply). */
#include "gpu/step_log.h"

#include "client/tandem.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STREAMS_MAX = 512,
    PROMPT_MAX = 4096,
    TOKENS_MAX = 1024,
    TIMES_MAX = 15,
    PROCESSES_MAX = 64,
    PROCESSES = 8
};

struct load {
    const char *run_dir;
    struct step_log *log; /* or NULL */
    uint32_t processes, vocabulary, streams, prompt, prompt_most, tokens, hold, times;
};

struct stream {
    pthread_t thread;
    const struct load *load;
    struct tandem *tandem; /* of its process */
    uint64_t seed;
    uint32_t seen, arrivals, preemptions;
    uint64_t gap_ns[TOKENS_MAX];     /* [arrivals - 1] */
    uint64_t arrival_ns[TOKENS_MAX]; /* [token] */
};

/* What the processes share. */
struct scene {
    pthread_barrier_t connected;
    uint64_t start_ns;
    struct stream streams[STREAMS_MAX];
};

/* Of one run; medians are taken of each figure alone. */
enum figure {
    WHOLE_RATE,
    STEADY_RATE,
    TOKEN_MS,
    GAP_P50_MS,
    GAP_P99_MS,
    PREEMPTIONS,
    STEP_MS,
    IDLE_PERCENT,
    LATE_P50_US,
    LATE_P99_US,
    FIGURES
};

static void fail(const struct tandem_error *error)
{
    fprintf(stderr, "serve_bench: %s\n", error->message);
    exit(1);
}

static void take_output(struct stream *stream, const struct tandem_output *output, uint64_t now_ns)
{
    if (output->token_count == 0)
        return;
    if (stream->seen > 0)
        stream->gap_ns[stream->arrivals - 1] = now_ns - stream->arrival_ns[stream->seen - 1];
    stream->arrivals++;
    for (size_t i = 0; i < output->token_count; i++)
        stream->arrival_ns[stream->seen++] = now_ns;
}

static void *run_stream(void *context)
{
    struct stream *stream = context;
    const struct load *load = stream->load;
    uint32_t ids[PROMPT_MAX];
    struct random random = {stream->seed};
    uint32_t length = load->prompt + random_below(&random, load->prompt_most - load->prompt + 1);
    for (uint32_t i = 0; i < length; i++)
        ids[i] = random_below(&random, load->vocabulary);
    const struct tandem_request request = {
        .ids = ids, .id_count = length, .max_tokens = load->tokens, .ignore_eos = true};
    struct tandem_stream *reader;
    struct tandem_output output = {0};
    struct tandem_error error;
    if (tandem_submit(stream->tandem, &request, &reader, &error) != TANDEM_OK)
        fail(&error);
    while (!output.finished) {
        uint32_t hold = stream->seen == 0 ? 1 : load->hold;
        if (tandem_next(reader, TANDEM_WAIT_MS_MAX, hold, &output, &error) != TANDEM_OK)
            fail(&error);
        take_output(stream, &output, clock_now_ns());
    }
    CHECK(stream->seen == load->tokens);
    stream->preemptions = output.finish.preemptions;
    tandem_stream_close(reader);
    return NULL;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static int compare_figures(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

/* Sorts `times`; p50 and p99 in units of `unit_ns`. */
static void percentiles(uint64_t *times, uint32_t count, double unit_ns, double *out_p50,
                        double *out_p99)
{
    if (count == 0)
        return;
    qsort(times, count, sizeof *times, compare_times);
    *out_p50 = (double)times[count / 2] / unit_ns;
    *out_p99 = (double)times[(uint64_t)count * 99 / 100] / unit_ns;
}

static void measure_gaps(const struct stream *streams, uint32_t count, double *out)
{
    static uint64_t gaps[STREAMS_MAX * TOKENS_MAX];
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j + 1 < streams[i].arrivals; j++)
            gaps[total++] = streams[i].gap_ns[j];
        out[PREEMPTIONS] += streams[i].preemptions;
    }
    percentiles(gaps, total, 1e6, &out[GAP_P50_MS], &out[GAP_P99_MS]);
}

static void measure_rates(const struct stream *streams, const struct load *load, uint64_t start_ns,
                          double *out)
{
    uint64_t first = 0, end = UINT64_MAX, last = 0, steady = 0;
    for (uint32_t i = 0; i < load->streams; i++) {
        uint64_t own = streams[i].arrival_ns[load->tokens - 1];
        first = streams[i].arrival_ns[0] > first ? streams[i].arrival_ns[0] : first;
        end = own < end ? own : end;
        last = own > last ? own : last;
    }
    for (uint32_t i = 0; i < load->streams; i++)
        for (uint32_t j = 0; j < load->tokens; j++)
            steady += streams[i].arrival_ns[j] > first && streams[i].arrival_ns[j] <= end;
    out[WHOLE_RATE] = (double)load->streams * load->tokens / ((double)(last - start_ns) / NS_PER_S);
    if (end > first && steady > 0) {
        out[STEADY_RATE] = (double)steady / ((double)(end - first) / NS_PER_S);
        out[TOKEN_MS] = load->streams / out[STEADY_RATE] * 1e3;
    }
}

/* The step of a stream's first token, counted from the first of `steps`, may lie before it. Tokens
 * follow each other step by step; the fastest arrival decides, since it comes within a step. */
static int64_t first_step(const struct stream *stream, const struct step_run *run, uint32_t tokens)
{
    int64_t first = INT64_MAX;
    uint32_t step = 0;
    for (uint32_t i = 0; i < tokens; i++) {
        while (step + 1 < run->count && run->steps[step + 1].seen_ns <= stream->arrival_ns[i])
            step++;
        if (stream->arrival_ns[i] < run->steps[0].seen_ns || step + 1 == run->count)
            continue;
        first = (int64_t)step - i < first ? (int64_t)step - i : first;
    }
    return first;
}

/* Whether a token is one that its reply waited for, and not one that the reply held back. */
static bool waited_for(const struct stream *stream, const struct load *load, int64_t token)
{
    return load->hold == 1 || token + 1 == load->tokens ||
           stream->arrival_ns[token] != stream->arrival_ns[token + 1];
}

static void measure_steps(const struct stream *streams, const struct load *load, double *out)
{
    static uint64_t late[STREAMS_MAX * TOKENS_MAX];
    struct step_run run;
    uint32_t total = 0;
    if (load->log == NULL || !step_log_read(load->log, load->streams, &run))
        return;
    out[IDLE_PERCENT] = step_run_idle(&run) * 100;
    out[STEP_MS] =
        (double)(run.steps[run.count - 1].seen_ns - run.steps[0].seen_ns) / 1e6 / (run.count - 1);
    for (uint32_t i = 0; i < load->streams; i++) {
        int64_t first = first_step(&streams[i], &run, load->tokens);
        for (int64_t j = 0; first != INT64_MAX && j < load->tokens; j++)
            if (first + j >= 0 && first + j < run.count && waited_for(&streams[i], load, j))
                late[total++] = streams[i].arrival_ns[j] - run.steps[first + j].seen_ns;
    }
    percentiles(late, total, 1e3, &out[LATE_P50_US], &out[LATE_P99_US]);
}

static void print_figures(const struct load *load, const char *what, const double *of)
{
    printf("%s streams %3u prompt %4u", what, load->streams, load->prompt);
    if (load->prompt_most > load->prompt)
        printf("-%u", load->prompt_most);
    printf(" tokens %3u hold %u: all %7.0f tok/s; steady %7.0f tok/s, %.3f ms/token; gaps p50 %.3f "
           "p99 %.3f ms; preemptions %.0f",
           load->tokens, load->hold, of[WHOLE_RATE], of[STEADY_RATE], of[TOKEN_MS], of[GAP_P50_MS],
           of[GAP_P99_MS], of[PREEMPTIONS]);
    if (load->log != NULL && of[STEP_MS] > 0)
        printf("; full steps %.3f ms, device idle %.2f %%; sampled to arrived p50 %.0f p99 %.0f us",
               of[STEP_MS], of[IDLE_PERCENT], of[LATE_P50_US], of[LATE_P99_US]);
    printf("\n");
    fflush(stdout);
}

/* One process of clients: every processes-th stream, from `first` on. */
static void run_clients(struct scene *scene, const struct load *load, uint32_t first)
{
    struct tandem_settings settings = {.run_dir = load->run_dir};
    struct tandem_error error;
    struct tandem *tandem;
    if (tandem_open(&settings, &tandem, &error) != TANDEM_OK)
        fail(&error);
    if (pthread_barrier_wait(&scene->connected) == PTHREAD_BARRIER_SERIAL_THREAD)
        scene->start_ns = clock_now_ns();
    for (uint32_t i = first; i < load->streams; i += load->processes) {
        scene->streams[i].tandem = tandem;
        CHECK(pthread_create(&scene->streams[i].thread, NULL, run_stream, &scene->streams[i]) == 0);
    }
    for (uint32_t i = first; i < load->streams; i += load->processes)
        pthread_join(scene->streams[i].thread, NULL);
    tandem_close(tandem);
}

static void run_once(struct scene *scene, const struct load *load, double *out)
{
    static uint64_t seed = 1;
    pid_t children[PROCESSES_MAX];
    pthread_barrierattr_t shared;
    CHECK(pthread_barrierattr_init(&shared) == 0 &&
          pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0 &&
          pthread_barrier_init(&scene->connected, &shared, load->processes) == 0);
    if (load->log != NULL)
        step_log_skip(load->log);
    for (uint32_t i = 0; i < load->streams; i++)
        scene->streams[i] = (struct stream){.load = load, .seed = seed++};
    for (uint32_t i = 0; i < load->processes; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_clients(scene, load, i);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < load->processes; i++) {
        int status = 0;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        if (status != 0) {
            fprintf(stderr, "serve_bench: a process of clients failed\n");
            exit(1); /* the others end with this one */
        }
    }
    pthread_barrier_destroy(&scene->connected);
    measure_rates(scene->streams, load, scene->start_ns, out);
    measure_gaps(scene->streams, load->streams, out);
    measure_steps(scene->streams, load, out);
}

static void run_case(struct scene *scene, const struct load *load)
{
    static double figures[TIMES_MAX][FIGURES];
    double middle[FIGURES], sorted[TIMES_MAX];
    memset(figures, 0, sizeof figures);
    for (uint32_t i = 0; i < load->times; i++) {
        run_once(scene, load, figures[i]);
        print_figures(load, "serve ", figures[i]);
    }
    if (load->times == 1)
        return;
    for (uint32_t figure = 0; figure < FIGURES; figure++) {
        for (uint32_t i = 0; i < load->times; i++)
            sorted[i] = figures[i][figure];
        qsort(sorted, load->times, sizeof *sorted, compare_figures);
        middle[figure] = sorted[load->times / 2];
    }
    print_figures(load, "median", middle);
}

static void read_case(char *at, struct load *load)
{
    load->streams = (uint32_t)strtoul(at, &at, 10);
    load->prompt = load->prompt_most = (uint32_t)strtoul(at + 1, &at, 10);
    if (*at == '-')
        load->prompt_most = (uint32_t)strtoul(at + 1, &at, 10);
    load->tokens = (uint32_t)strtoul(at + 1, &at, 10);
    load->hold = (uint32_t)strtoul(at + 1, &at, 10);
    load->times = *at == 'x' ? (uint32_t)strtoul(at + 1, &at, 10) : 1;
    CHECK(load->streams >= 1 && load->streams <= STREAMS_MAX && load->prompt <= load->prompt_most &&
          load->prompt_most <= PROMPT_MAX && load->tokens >= 2 && load->tokens <= TOKENS_MAX &&
          load->times >= 1 && load->times <= TIMES_MAX);
}

int main(int argc, char **argv)
{
    static struct step_log log;
    struct load load = {.processes = PROCESSES};
    for (; argc > 2 && strncmp(argv[1], "--", 2) == 0; argv += 2, argc -= 2) {
        if (strcmp(argv[1], "--processes") == 0) {
            load.processes = (uint32_t)strtoul(argv[2], NULL, 10);
        } else {
            CHECK(strcmp(argv[1], "--worker-log") == 0 && step_log_open(&log, argv[2]));
            load.log = &log;
        }
    }
    CHECK(argc >= 4 && load.processes >= 1 && load.processes <= PROCESSES_MAX);
    struct scene *scene =
        mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(scene != MAP_FAILED);
    load.run_dir = argv[1];
    load.vocabulary = (uint32_t)strtoul(argv[2], NULL, 10);
    uint32_t processes = load.processes;
    for (int i = 3; i < argc; i++) {
        read_case(argv[i], &load);
        load.processes = processes < load.streams ? processes : load.streams;
        run_case(scene, &load);
    }
    return 0;
}
