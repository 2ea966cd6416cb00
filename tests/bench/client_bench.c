/* What clients of a running pair see, on the workloads of model_bench: every stream is a thread of
 * its own with a random prompt of ids, and asks for each token as it comes.
 *
 * usage: client_bench RUN_DIR VOCABULARY WORKLOAD...
 * pp512      tokens of the prompt by the time to the first token
 * tg128      128 tokens after the first one, of a prompt of one token
 * tg64@1024  64 tokens after the first one, of a prompt of 1,024
 * b8, b32    8 and 32 streams with prompts of 128: the tokens that came while all of them ran */
#include "bench/workload.h"
#include "client/tandem.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAMS_MAX = 64,
    TOKENS_MAX = 1024,
    PROMPT_MAX = 4096,
    BATCH_PROMPT = 128,
    EXIT_USAGE = 64
};
/* In a batch the first streams run ahead while the last prompts are read. */
enum { BATCH_TOKENS = 160 };

struct load {
    struct tandem *tandem;
    uint32_t vocabulary, streams, prompt, tokens;
};

struct stream {
    pthread_t thread;
    const struct load *load;
    uint64_t seed, start_ns;
    uint64_t arrival_ns[TOKENS_MAX]; /* of each token */
    uint32_t seen;
};

static void fail(const struct tandem_error *error)
{
    fprintf(stderr, "client_bench: %s\n", error->message);
    exit(1);
}

static void *run_stream(void *context)
{
    struct stream *stream = context;
    const struct load *load = stream->load;
    uint32_t ids[PROMPT_MAX];
    struct random random = {stream->seed};
    for (uint32_t i = 0; i < load->prompt; i++)
        ids[i] = random_below(&random, load->vocabulary);
    const struct tandem_request request = {
        .ids = ids, .id_count = load->prompt, .max_tokens = load->tokens, .ignore_eos = true};
    struct tandem_stream *reader;
    struct tandem_output output = {0};
    struct tandem_error error;
    stream->start_ns = clock_now_ns();
    if (tandem_submit(load->tandem, &request, &reader, &error) != TANDEM_OK)
        fail(&error);
    while (!output.finished) {
        if (tandem_next(reader, TANDEM_WAIT_MS_MAX, 1, &output, &error) != TANDEM_OK)
            fail(&error);
        uint64_t now_ns = clock_now_ns();
        for (size_t i = 0; i < output.token_count && stream->seen < TOKENS_MAX; i++)
            stream->arrival_ns[stream->seen++] = now_ns;
    }
    tandem_stream_close(reader);
    if (stream->seen != load->tokens) {
        fprintf(stderr, "client_bench: %u of %u tokens came\n", stream->seen, load->tokens);
        exit(1);
    }
    return NULL;
}

/* Tokens per second of all streams together between the last first token and the first last one. */
static double steady_rate(const struct stream *streams, const struct load *load)
{
    uint64_t begin_ns = 0, end_ns = UINT64_MAX, tokens = 0;
    for (uint32_t i = 0; i < load->streams; i++) {
        uint64_t first_ns = streams[i].arrival_ns[0],
                 last_ns = streams[i].arrival_ns[load->tokens - 1];
        begin_ns = first_ns > begin_ns ? first_ns : begin_ns;
        end_ns = last_ns < end_ns ? last_ns : end_ns;
    }
    for (uint32_t i = 0; i < load->streams; i++)
        for (uint32_t token = 0; token < load->tokens; token++)
            tokens +=
                streams[i].arrival_ns[token] > begin_ns && streams[i].arrival_ns[token] <= end_ns;
    return end_ns > begin_ns ? (double)tokens / ((double)(end_ns - begin_ns) * 1e-9) : 0;
}

static double run_load(const struct load *load)
{
    static struct stream streams[STREAMS_MAX];
    static uint64_t seed = 1;
    for (uint32_t i = 0; i < load->streams; i++) {
        streams[i] = (struct stream){.load = load, .seed = seed++};
        CHECK(pthread_create(&streams[i].thread, NULL, run_stream, &streams[i]) == 0);
    }
    for (uint32_t i = 0; i < load->streams; i++)
        pthread_join(streams[i].thread, NULL);
    if (load->tokens > 1)
        return steady_rate(streams, load);
    return load->prompt / ((double)(streams[0].arrival_ns[0] - streams[0].start_ns) * 1e-9);
}

/* false: not a workload, or beyond the limits of this program. */
static bool set_workload(struct load *load, const char *text)
{
    struct workload workload;
    if (!workload_parse(text, &workload))
        return false;
    load->streams = 1;
    if (workload.kind == WORKLOAD_PROMPT) {
        load->prompt = workload.count;
        load->tokens = 1;
    } else if (workload.kind == WORKLOAD_STREAM) {
        load->prompt = workload.depth > 0 ? workload.depth : 1;
        load->tokens = workload.count + 1;
    } else {
        load->streams = workload.count;
        load->prompt = BATCH_PROMPT;
        load->tokens = BATCH_TOKENS;
    }
    return load->streams <= STREAMS_MAX && load->prompt <= PROMPT_MAX && load->tokens <= TOKENS_MAX;
}

int main(int argc, char **argv)
{
    struct load load = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: client_bench RUN_DIR VOCABULARY WORKLOAD...\n");
        return EXIT_USAGE;
    }
    struct tandem_settings settings = {.run_dir = argv[1]};
    struct tandem_error error;
    load.vocabulary = (uint32_t)strtoul(argv[2], NULL, 10);
    if (load.vocabulary == 0 || tandem_open(&settings, &load.tandem, &error) != TANDEM_OK)
        fail(&error);
    for (int i = 3; i < argc; i++) {
        if (!set_workload(&load, argv[i])) {
            fprintf(stderr, "client_bench: %s is no workload\n", argv[i]);
            return EXIT_USAGE;
        }
        printf("%-10s %8.1f tok/s\n", argv[i], run_load(&load));
        fflush(stdout);
    }
    tandem_close(load.tandem);
    return 0;
}
