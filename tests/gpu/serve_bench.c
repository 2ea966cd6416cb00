/* The pair end to end on a device: N clients, each a stream of its own with a random prompt of ids,
 * through coordinator and sockets. Decode rates are steady ones: the time of all tokens but the
 * first, while all streams run. A gap is the time between two arrivals of one stream.
 * usage: serve_bench RUN_DIR VOCABULARY STREAMS:PROMPT[-PROMPT]:TOKENS:HOLD...
 * (HOLD: tokens of one reply; of two prompt lengths each stream draws one between them) */
#include "client/tandem.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { STREAMS_MAX = 512, PROMPT_MAX = 4096, TOKENS_MAX = 1024 };

struct load {
    struct tandem *tandem;
    uint32_t vocabulary, prompt, prompt_most, tokens, hold;
};

struct stream {
    pthread_t thread;
    const struct load *load;
    uint64_t seed, first_ns, last_ns;
    uint32_t seen, arrivals, preemptions;
    uint64_t gap_ns[TOKENS_MAX]; /* [arrivals] */
};

static void fail(const struct tandem_error *error)
{
    fprintf(stderr, "serve_bench: %s\n", error->message);
    exit(1);
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
    if (tandem_submit(load->tandem, &request, &reader, &error) != TANDEM_OK)
        fail(&error);
    while (!output.finished) {
        uint32_t hold = stream->seen == 0 ? 1 : load->hold;
        if (tandem_next(reader, TANDEM_WAIT_MS_MAX, hold, &output, &error) != TANDEM_OK)
            fail(&error);
        uint64_t now_ns = clock_now_ns();
        if (output.token_count == 0)
            continue;
        if (stream->seen == 0)
            stream->first_ns = now_ns;
        else
            stream->gap_ns[stream->arrivals++] = now_ns - stream->last_ns;
        stream->last_ns = now_ns;
        stream->seen += (uint32_t)output.token_count;
    }
    stream->preemptions = output.finish.preemptions;
    tandem_stream_close(reader);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static void print_gaps(const struct stream *streams, uint32_t count)
{
    static uint64_t gaps[STREAMS_MAX * TOKENS_MAX];
    uint32_t total = 0, preemptions = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < streams[i].arrivals; j++)
            gaps[total++] = streams[i].gap_ns[j];
        preemptions += streams[i].preemptions;
    }
    CHECK(total > 0);
    qsort(gaps, total, sizeof *gaps, compare);
    printf("      gaps p50 %.3f ms p99 %.3f ms most %.1f ms, preemptions %u\n",
           (double)gaps[total / 2] / 1e6, (double)gaps[total / 100 * 99] / 1e6,
           (double)gaps[total - 1] / 1e6, preemptions);
}

/* Steady: from the moment when the last stream has its first token to that when the first is done.
 */
static void run_case(const struct load *load, uint32_t count)
{
    static struct stream streams[STREAMS_MAX];
    static uint64_t seed = 1;
    uint64_t start_ns = clock_now_ns(), started = 0, ended = UINT64_MAX, last = 0, tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        streams[i] = (struct stream){.load = load, .seed = seed++};
        CHECK(pthread_create(&streams[i].thread, NULL, run_stream, &streams[i]) == 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(streams[i].thread, NULL);
        started = streams[i].first_ns > started ? streams[i].first_ns : started;
        ended = streams[i].last_ns < ended ? streams[i].last_ns : ended;
        last = streams[i].last_ns > last ? streams[i].last_ns : last;
        tokens += streams[i].seen;
    }
    double whole_ms = (double)(last - start_ns) / 1e6;
    double decode_ms = (double)(last - started) / 1e6;
    printf(
        "serve streams %3u prompt %4u tokens %4u hold %2u: all %8.1f ms = %7.0f tok/s; after the "
        "last first token %8.1f ms = %7.0f tok/s, %.3f ms/token\n",
        count, load->prompt, load->tokens, load->hold, whole_ms, (double)tokens / whole_ms * 1e3,
        decode_ms, (double)count * (load->tokens - 1) / decode_ms * 1e3,
        decode_ms / (load->tokens - 1));
    print_gaps(streams, count);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    struct tandem_settings settings = {.run_dir = argv[1]};
    struct tandem_error error;
    struct load load = {.vocabulary = (uint32_t)strtoul(argv[2], NULL, 10)};
    if (tandem_open(&settings, &load.tandem, &error) != TANDEM_OK)
        fail(&error);
    for (int i = 3; i < argc; i++) {
        unsigned count;
        char *at = argv[i];
        count = (unsigned)strtoul(at, &at, 10);
        load.prompt = load.prompt_most = (uint32_t)strtoul(at + 1, &at, 10);
        if (*at == '-')
            load.prompt_most = (uint32_t)strtoul(at + 1, &at, 10);
        load.tokens = (uint32_t)strtoul(at + 1, &at, 10);
        load.hold = (uint32_t)strtoul(at + 1, &at, 10);
        CHECK(count >= 1 && count <= STREAMS_MAX && load.prompt <= load.prompt_most &&
              load.prompt_most <= PROMPT_MAX && load.tokens >= 2 && load.tokens <= TOKENS_MAX);
        run_case(&load, count);
    }
    tandem_close(load.tandem);
    return 0;
}
