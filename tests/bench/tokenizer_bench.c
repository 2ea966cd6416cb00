/* Speed of the tokenizer and the detokenizer on one core.
 * usage: tokenizer_bench [MODEL.gguf [NAME=TEXT-FILE]...]
 * The model is by default $TANDEM_TEST_MODEL or the one in ~/.cache/tandem. Without text files it
 * takes English and code from this repository and a Chinese text of its own. Figures are medians.
 */
#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"
#include "coordinator/tokenizer/detokenizer.h"
#include "coordinator/tokenizer/tokenizer.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_BYTES_MAX = 4 << 20,
    DOCUMENT_BYTES = 64 << 10,
    TURNS = 15,
    STEPS = 10000,
    ROWS = 256,
};

struct bench {
    struct tokenizer tokenizer;
    struct tokenizer_scratch scratch;
    char *text;
    size_t length;
    struct token_list tokens;
};

static const char chinese[] =
    "一台机器上的服务可以随时停止，等待中的请求不会丢失。协调者保存每一个请求的全部状态，"
    "工作进程只是一个可以替换的缓存。当新的进程启动以后，它从共享内存中读取已经生成的文字，"
    "重新计算，然后继续写下去，好像什么都没有发生过。2026年11月，我们测量了这种恢复需要的时间：不到"
    "两秒钟。"
    "用户看到的答案，每一个字都和没有中断的时候完全一样。";

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t percentile(uint64_t *times, size_t count, size_t percent)
{
    qsort(times, count, sizeof *times, compare_times);
    return times[count * percent / 100];
}

static void append_file(struct bench *bench, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return;
    bench->length += fread(bench->text + bench->length, 1, TEXT_BYTES_MAX - bench->length, file);
    (void)fclose(file);
}

static void take_files(struct bench *bench, const char *pattern)
{
    glob_t found = {0};
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            append_file(bench, found.gl_pathv[i]);
    globfree(&found);
}

/* The text as documents of 64 KiB that end between characters; the tokens of the last turn stay. */
static void encode_text(struct bench *bench)
{
    bench->tokens.count = 0;
    for (size_t at = 0; at < bench->length;) {
        size_t rest = bench->length - at;
        size_t length =
            utf8_valid_prefix(bench->text + at, rest < DOCUMENT_BYTES ? rest : DOCUMENT_BYTES);
        if (length == 0)
            break;
        struct byte_view view = {bench->text + at, length};
        enum status status = tokenizer_encode(&bench->tokenizer, &bench->scratch, view,
                                              SPECIAL_TOKENS_PARSED, &bench->tokens, NULL);
        CHECK(status == STATUS_OK);
        at += length;
    }
}

static void measure_text(struct bench *bench, const char *name)
{
    if (bench->length == 0) {
        (void)printf("%-10s no text\n", name);
        return;
    }
    uint64_t times[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t start = clock_now_ns();
        encode_text(bench);
        times[turn] = clock_now_ns() - start;
    }
    double seconds = (double)percentile(times, TURNS, 50) * 1e-9;
    (void)printf("%-10s %6.2f MB %9zu tokens %7.1f MB/s %6.2f Mtok/s (best %.1f MB/s)\n", name,
                 (double)bench->length * 1e-6, bench->tokens.count,
                 (double)bench->length * 1e-6 / seconds,
                 (double)bench->tokens.count * 1e-6 / seconds,
                 (double)bench->length * 1e-6 / ((double)times[0] * 1e-9));
}

static void measure_run(struct bench *bench, char byte)
{
    enum { RUN_BYTES = 1 << 20 };
    memset(bench->text, byte, RUN_BYTES);
    bench->tokens.count = 0;
    struct byte_view view = {bench->text, RUN_BYTES};
    uint64_t start = clock_now_ns();
    enum status status = tokenizer_encode(&bench->tokenizer, &bench->scratch, view,
                                          SPECIAL_TOKENS_PARSED, &bench->tokens, NULL);
    CHECK(status == STATUS_OK);
    (void)printf("1 MiB of '%c': %.0f ms\n", byte, (double)(clock_now_ns() - start) * 1e-6);
}

/* One step of decoding: a token for each of 256 requests. Their tokens are those of the English
 * text, each request from a place of its own. */
static void measure_detokenizer(const struct bench *bench, const struct stop_set *stops,
                                const char *name)
{
    static struct detokenizer requests[ROWS];
    static uint64_t times[STEPS];
    char out[DETOKENIZER_OUTPUT_BYTES_MAX];
    struct random random = {1};
    size_t places[ROWS];
    for (size_t row = 0; row < ROWS; row++) {
        detokenizer_init(&requests[row], (struct byte_view){"", 0});
        places[row] = random_below(&random, bench->tokens.count);
    }
    for (size_t step = 0; step < STEPS; step++) {
        uint64_t start = clock_now_ns();
        for (size_t row = 0; row < ROWS; row++) {
            if (requests[row].ended)
                detokenizer_init(&requests[row], (struct byte_view){"", 0});
            uint32_t token = bench->tokens.tokens[(places[row] + step) % bench->tokens.count];
            (void)detokenizer_push(&requests[row], &bench->tokenizer.vocabulary, stops, token, out);
        }
        times[step] = clock_now_ns() - start;
    }
    uint64_t middle = percentile(times, STEPS, 50);
    (void)printf("detokenizer, %d rows, %s: %.1f us a step (p99 %.1f)\n", ROWS, name,
                 (double)middle * 1e-3, (double)times[STEPS * 99 / 100] * 1e-3);
}

static void measure_detokenizers(const struct bench *bench)
{
    struct byte_view strings[] = {
        {"\n\nUser:", 7}, {"</answer>", 9}, {"### ", 4}, {"END OF TEXT", 11}};
    struct stop_set stops;
    enum status status = stop_set_init(&stops, strings, sizeof strings / sizeof strings[0], NULL);
    CHECK(status == STATUS_OK);
    measure_detokenizer(bench, NULL, "no stops");
    measure_detokenizer(bench, &stops, "4 stops");
}

static bool open_model(struct bench *bench, const char *named)
{
    char path[4096];
    const char *home = getenv("HOME");
    (void)snprintf(path, sizeof path, "%s%s",
                   named != NULL  ? named
                   : home != NULL ? home
                                  : "",
                   named != NULL ? "" : "/.cache/tandem/SmolLM2-135M-Instruct.Q4_1.gguf");
    struct reason reason;
    struct text *why = reason_init(&reason);
    struct gguf *gguf = NULL;
    enum status status = gguf_open(path, &gguf, why);
    uint64_t start = clock_now_ns();
    if (status == STATUS_OK)
        status = tokenizer_open(&bench->tokenizer, gguf, why);
    (void)printf("opening: %.0f ms\n", (double)(clock_now_ns() - start) * 1e-6);
    gguf_close(gguf);
    if (status != STATUS_OK)
        (void)fprintf(stderr, "tokenizer_bench: %s: %s\n", path, reason.storage);
    return status == STATUS_OK;
}

static void measure_own_texts(struct bench *bench)
{
    take_files(bench, TANDEM_SOURCE_DIR "/docs/*.md");
    take_files(bench, TANDEM_SOURCE_DIR "/*.md");
    measure_text(bench, "English");
    measure_detokenizers(bench);
    bench->length = 0;
    take_files(bench, TANDEM_SOURCE_DIR "/c*/*.c");
    take_files(bench, TANDEM_SOURCE_DIR "/*/*/*.c");
    measure_text(bench, "code");
    bench->length = 0;
    while (bench->length + sizeof chinese < TEXT_BYTES_MAX / 16) {
        memcpy(bench->text + bench->length, chinese, sizeof chinese - 1);
        bench->length += sizeof chinese - 1;
    }
    measure_text(bench, "Chinese");
}

int main(int argument_count, char **arguments)
{
    static struct bench bench;
    bench.text = malloc(TEXT_BYTES_MAX);
    bench.tokens.capacity = TEXT_BYTES_MAX;
    bench.tokens.tokens = malloc(TEXT_BYTES_MAX * sizeof(uint32_t));
    CHECK(bench.text != NULL && bench.tokens.tokens != NULL);
    if (!open_model(&bench, argument_count > 1 ? arguments[1] : getenv("TANDEM_TEST_MODEL")))
        return EXIT_FAILURE;
    for (int i = 2; i < argument_count; i++) {
        const char *equals = strchr(arguments[i], '=');
        bench.length = 0;
        if (equals != NULL)
            append_file(&bench, equals + 1);
        measure_text(&bench, arguments[i]);
    }
    if (argument_count <= 2)
        measure_own_texts(&bench);
    measure_run(&bench, '=');
    measure_run(&bench, 'a');
    tokenizer_free(&bench.tokenizer);
    free(bench.tokens.tokens);
    free(bench.text);
    return EXIT_SUCCESS;
}
