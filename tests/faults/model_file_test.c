/* Damaged model files at the loaders of both programs: cut at every border and at random lengths,
 * bits flipped in the header, and files that are wrong on purpose. Each is refused with a reason or
 * loaded, in bounded time and memory. Cases run in a child: one that dies, or hangs until its
 * alarm, is named by its number.
 * usage: model_file_test CUTS FLIPS [SEED]   (how many random ones) */
#include "coordinator/served_model.h"
#include "support/whole_model.h"
#include "worker/model.h"

#include "common/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    BORDERS_MAX = 4096,
    CASE_CPU_MS_MAX = 2000, /* generous: sanitizers and a loaded machine */
    GROUP_SECONDS_MAX = 500,
    PATH_BYTES = 64,
    FLIPS_AT_ONCE_MAX = 8,
};

/* What all cases of a group together may add to the peak of the process. Sanitizers keep freed
 * memory for a while. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { GROWTH_KIB_MAX = 320 << 10 };
#else
enum { GROWTH_KIB_MAX = 48 << 10 };
#endif

struct file {
    uint8_t *bytes;
    size_t length;
};

struct tally {
    uint64_t number; /* of the case at hand */
    uint32_t loaded, served, refused_by_worker, refused_by_coordinator;
    uint64_t worst_ns;
    long growth_kib;
};

struct bench {
    struct file model;
    size_t borders[BORDERS_MAX];
    uint32_t border_count;
    size_t header_bytes;
    int descriptor; /* of the file that the loaders see */
    char path[PATH_BYTES];
    struct backend *backend;
    struct coordinator_config config;
    struct tally *tally; /* shared with the parent */
};

/* ---- The file's borders, found by a reader that trusts it ---- */

static uint64_t number_at(const struct file *file, size_t at, size_t width)
{
    uint64_t value = 0;
    CHECK(width <= sizeof value && at + width <= file->length);
    memcpy(&value, file->bytes + at, width);
    return value;
}

static size_t skip_string(const struct file *file, size_t at)
{
    return at + 8 + (size_t)number_at(file, at, 8);
}

static size_t skip_scalar(const struct file *file, size_t at, uint32_t type)
{
    return type == GGUF_VALUE_STRING ? skip_string(file, at) : at + gguf_value_bytes(type);
}

static size_t skip_value(const struct file *file, size_t at, uint32_t type)
{
    if (type != GGUF_VALUE_ARRAY)
        return skip_scalar(file, at, type);
    uint32_t element = (uint32_t)number_at(file, at, 4);
    uint64_t count = number_at(file, at + 4, 8);
    at += 12;
    for (uint64_t i = 0; i < count; i++)
        at = skip_scalar(file, at, element);
    return at;
}

static void add_border(struct bench *bench, size_t at)
{
    CHECK(bench->border_count < BORDERS_MAX);
    bench->borders[bench->border_count++] = at;
}

/* Magic, version, counts; each key, its type and its value; each entry of the directory; the data;
 * each tensor. */
static void find_borders(struct bench *bench)
{
    const struct file *file = &bench->model;
    uint64_t tensors = number_at(file, 8, 8), keys = number_at(file, 16, 8);
    size_t at = 24;
    const size_t starts[] = {0, 4, 8, 16, 24};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        add_border(bench, starts[i]);
    for (uint64_t i = 0; i < keys; i++) {
        at = skip_string(file, at);
        add_border(bench, at);
        uint32_t type = (uint32_t)number_at(file, at, 4);
        add_border(bench, at + 4);
        at = skip_value(file, at + 4, type);
        add_border(bench, at);
    }
    for (uint64_t i = 0; i < tensors; i++) {
        at = skip_string(file, at);
        add_border(bench, at);
        at += 4 + 8 * (size_t)number_at(file, at, 4) + 4 + 8;
        add_border(bench, at);
    }
    bench->header_bytes = at;
    struct gguf *gguf = NULL;
    CHECK(gguf_open_memory(file->bytes, file->length, &gguf, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        add_border(bench, (size_t)tensor->offset);
        add_border(bench, (size_t)(tensor->offset + tensor->bytes));
    }
    gguf_close(gguf);
}

/* ---- One file at both loaders ---- */

static uint64_t cpu_ns(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static bool is_refusal(enum status status)
{
    return status == STATUS_BAD_FILE || status == STATUS_UNSUPPORTED ||
           status == STATUS_TOO_LARGE || status == STATUS_INVALID;
}

static void must_be_named(enum status status, const struct reason *reason, const char *program)
{
    if (is_refusal(status) && reason->text.length > 0)
        return;
    (void)fprintf(stderr, "%s: %s: %s\n", program, status_text(status), reason->storage);
    CHECK(is_refusal(status) && reason->text.length > 0);
}

/* A model that was taken must work: its ids are below its rows. */
static void use_tokenizer(const struct served_model *model)
{
    static struct tokenizer_scratch scratch;
    uint32_t tokens[64];
    struct token_list list = {.tokens = tokens, .capacity = 64};
    struct byte_view text = {"hello, world <|im_end|>", 23};
    enum status status =
        tokenizer_encode(&model->tokenizer, &scratch, text, SPECIAL_TOKENS_PARSED, &list, NULL);
    CHECK(status == STATUS_OK);
    for (size_t i = 0; i < list.count; i++)
        CHECK(list.tokens[i] < model->shape.tokens && list.tokens[i] < model->shape.vocabulary);
}

static enum status try_coordinator(struct bench *bench, struct reason *reason,
                                   struct id128 *out_hash)
{
    struct served_model model;
    enum status status = served_model_open(&bench->config, &model, reason_init(reason));
    if (status == STATUS_OK) {
        use_tokenizer(&model);
        *out_hash = model.shape.metadata_hash;
        served_model_close(&model);
    } else {
        must_be_named(status, reason, "coordinator");
    }
    return status;
}

static enum status try_worker(struct bench *bench, struct reason *reason, struct id128 *out_hash)
{
    struct model model;
    enum status status =
        model_open(bench->path, bench->backend, NULL, NULL, &model, reason_init(reason));
    if (status == STATUS_OK) {
        *out_hash = model.shape.metadata_hash;
        model_close(&model);
    } else {
        must_be_named(status, reason, "worker");
    }
    return status;
}

struct outcome {
    enum status coordinator, worker;
    struct reason coordinator_reason, worker_reason;
};

static void try_file(struct bench *bench, const uint8_t *bytes, size_t length, struct outcome *out)
{
    struct id128 hashes[2];
    uint64_t begin_ns = cpu_ns();
    CHECK(ftruncate(bench->descriptor, 0) == 0);
    CHECK(pwrite(bench->descriptor, bytes, length, 0) == (ssize_t)length);
    out->coordinator = try_coordinator(bench, &out->coordinator_reason, &hashes[0]);
    out->worker = try_worker(bench, &out->worker_reason, &hashes[1]);
    if (out->coordinator == STATUS_OK && out->worker == STATUS_OK)
        CHECK(id128_equal(&hashes[0], &hashes[1]));
    uint64_t used_ns = cpu_ns() - begin_ns;
    struct tally *tally = bench->tally;
    tally->worst_ns = used_ns > tally->worst_ns ? used_ns : tally->worst_ns;
    tally->served += out->coordinator == STATUS_OK;
    tally->loaded += out->worker == STATUS_OK;
    tally->refused_by_coordinator += out->coordinator != STATUS_OK;
    tally->refused_by_worker += out->worker != STATUS_OK;
    tally->number++;
}

/* ---- Groups ---- */

struct load {
    uint32_t cuts, flips;
    uint64_t seed;
};

/* A file that is shorter than its tensors need can be no model. */
static void cut(struct bench *bench, size_t length)
{
    struct outcome outcome;
    try_file(bench, bench->model.bytes, length, &outcome);
    CHECK(outcome.worker != STATUS_OK && outcome.coordinator != STATUS_OK);
}

static void cut_at_borders(struct bench *bench, const struct load *load)
{
    (void)load;
    size_t end = 0; /* of the last tensor: padding behind it may be missing */
    for (uint32_t i = 0; i < bench->border_count; i++)
        end = bench->borders[i] > end ? bench->borders[i] : end;
    for (uint32_t i = 0; i < bench->border_count; i++)
        for (size_t step = 0; step < 3; step++) { /* one before, at, one behind */
            size_t length = bench->borders[i] + step;
            if (length >= 1 && length - 1 < end)
                cut(bench, length - 1);
        }
}

static void cut_at_random(struct bench *bench, const struct load *load)
{
    struct random random = {load->seed};
    for (uint32_t i = 0; i < load->cuts; i++) {
        /* Half of them in the header, which is small. */
        size_t below = i % 2 == 0 ? bench->header_bytes : bench->model.length - 64;
        cut(bench, random_below(&random, (uint32_t)below));
    }
}

static void flip_bits(struct bench *bench, const struct load *load)
{
    struct random random = {load->seed + 1};
    struct outcome outcome;
    uint8_t *copy = malloc(bench->model.length);
    CHECK(copy != NULL);
    memcpy(copy, bench->model.bytes, bench->model.length);
    for (uint32_t i = 0; i < load->flips; i++) {
        size_t places[FLIPS_AT_ONCE_MAX];
        uint32_t count = i % 4 == 0 ? 1 + random_below(&random, FLIPS_AT_ONCE_MAX) : 1;
        for (uint32_t j = 0; j < count; j++) {
            places[j] = random_below(&random, (uint32_t)bench->header_bytes);
            copy[places[j]] ^= (uint8_t)(1u << random_below(&random, 8));
        }
        try_file(bench, copy, bench->model.length, &outcome);
        for (uint32_t j = 0; j < count; j++)
            copy[places[j]] = bench->model.bytes[places[j]];
    }
    free(copy);
}

/* ---- Files that are wrong on purpose ---- */

enum { HEADER_TENSORS = 8, HEADER_KEYS = 16, FIRST_KEY_LENGTH = 24 };

/* Where a number of the entry of a tensor of two dimensions lies, behind its name. */
enum entry_field { DIMENSIONS = 0, COLUMNS = 4, ROWS = 12, TYPE = 20, OFFSET = 24 };

struct edit {
    const char *tensor; /* NULL: `at` counts from the start of the file */
    size_t at;
    size_t width;
    uint64_t value;
    const char *says;
};

#define QUERY "blk.0.attn_q.weight"

static const struct edit edits[] = {
    {NULL, 0, 4, 0x46554748, "does not start with GGUF"},
    {NULL, 4, 4, 1, "version 1"},
    {NULL, 4, 4, 0x03000000, "big-endian"},
    {NULL, HEADER_TENSORS, 8, UINT64_MAX, "tensors, more than"},
    {NULL, HEADER_TENSORS, 8, UINT64_C(1) << 40, "tensors, more than"},
    {NULL, HEADER_KEYS, 8, UINT64_MAX, "keys, more than"},
    {NULL, HEADER_KEYS, 8, UINT64_C(1) << 33, "keys, more than"},
    {NULL, FIRST_KEY_LENGTH, 8, UINT64_MAX, "inside key 1"},
    {NULL, FIRST_KEY_LENGTH, 8, UINT64_MAX - 31, "inside key 1"},
    {NULL, FIRST_KEY_LENGTH, 8, 0, "name of 0 bytes"},
    {QUERY, DIMENSIONS, 4, 0, "dimensions"},
    {QUERY, DIMENSIONS, 4, 5, "dimensions"},
    {QUERY, DIMENSIONS, 4, UINT32_MAX, "dimensions"},
    {QUERY, COLUMNS, 8, 0, "extent of 0"},
    {QUERY, COLUMNS, 8, UINT64_MAX, "63 bits"},
    {QUERY, COLUMNS, 8, UINT64_C(1) << 62, "63 bits"},
    {QUERY, ROWS, 8, UINT64_C(1) << 57, "63 bits"},
    {QUERY, ROWS, 8, UINT64_C(1) << 55, "bytes"},
    {QUERY, ROWS, 8, 1 << 20, "bytes, but it has"},
    {QUERY, ROWS, 8, 32, "expected"},
    {QUERY, TYPE, 4, 999, "unknown type number 999"},
    {QUERY, TYPE, 4, GGUF_TENSOR_F16, "expected"},
    {QUERY, OFFSET, 8, 0, "starts at offset 0 of the data, expected"},
    {QUERY, OFFSET, 8, UINT64_MAX, "expected"},
    {QUERY, OFFSET, 8, UINT64_MAX - 31, "expected"},
    {QUERY, OFFSET, 8, 1, "expected"},
};

static size_t entry_of(const struct file *file, const char *tensor)
{
    const uint8_t *name = memmem(file->bytes, file->length, tensor, strlen(tensor));
    CHECK(name != NULL);
    return (size_t)(name - file->bytes) + strlen(tensor);
}

static void expect_words(const struct outcome *outcome, const char *says, bool also_worker)
{
    bool found = strstr(outcome->coordinator_reason.storage, says) != NULL &&
                 (!also_worker || strstr(outcome->worker_reason.storage, says) != NULL);
    if (!found)
        (void)fprintf(stderr, "expected \"%s\", coordinator: %s, worker: %s\n", says,
                      outcome->coordinator_reason.storage, outcome->worker_reason.storage);
    CHECK(found);
}

static void edit_numbers(struct bench *bench, const struct load *load)
{
    (void)load;
    struct outcome outcome;
    uint8_t *copy = malloc(bench->model.length);
    CHECK(copy != NULL);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const struct edit *edit = &edits[i];
        size_t at = edit->at;
        if (edit->tensor != NULL)
            at += entry_of(&bench->model, edit->tensor);
        memcpy(copy, bench->model.bytes, bench->model.length);
        memcpy(copy + at, &edit->value, edit->width);
        try_file(bench, copy, bench->model.length, &outcome);
        CHECK(outcome.coordinator != STATUS_OK && outcome.worker != STATUS_OK);
        expect_words(&outcome, edit->says, true);
    }
    free(copy);
}

/* A vocabulary of `tokens` with `merges`; NULL ends each list. */
struct words {
    const char *tokens[8];
    const char *merges[4];
    uint8_t types[8]; /* 0: normal */
    uint64_t begin_token, end_token;
    const char *says;
    bool worker_refuses; /* it looks at the number of tokens only */
};

static const struct words vocabularies[] = {
    {.tokens = {"a", "b", "ab"}, .merges = {"a b"}, .says = NULL},
    {.tokens = {NULL}, .says = "has 0 tokens", .worker_refuses = true},
    {.tokens = {"a", "b"}, .merges = {"a b"}, .says = "names a token that is not there"},
    {.tokens = {"a", "ab"}, .merges = {"a b"}, .says = "names a token that is not there"},
    {.tokens = {"a", "b", "ab"}, .merges = {"b a"}, .says = "names a token that is not there"},
    /* A merge that gives one of its own sides, so that it could go on for ever. */
    {.tokens = {"a", "aa"}, .merges = {"aa "}, .says = "names a token that is not there"},
    {.tokens = {"a", "aa"}, .merges = {" aa"}, .says = "has no space"},
    {.tokens = {"a", "aa", ""}, .merges = {"aa "}, .says = "names a token that is not there"},
    {.tokens = {"a", "aa"}, .merges = {"a a", "a a"}, .says = "occurs twice"},
    {.tokens = {"a", "b", "ab"}, .merges = {"ab"}, .says = "too short"},
    {.tokens = {"a", "b", "a"}, .says = "occurs twice"},
    {.tokens = {"a", "<x>", "<x>"}, .types = {0, 3, 4}, .says = "occurs twice"},
    {.tokens = {"a", ""}, .types = {0, 3}, .says = "no readable text"},
    {.tokens = {"a", "\xff"}, .types = {0, 3}, .says = "no readable text"},
    {.tokens = {"a", "b"}, .types = {0, 6}, .says = "has a type"},
    {.tokens = {"a", "b"}, .types = {0, 99}, .says = "has a type"},
    {.tokens = {"a", "b"}, .end_token = 2, .says = "end token 2 is beyond"},
    {.tokens = {"a", "b"}, .begin_token = 7, .says = "begin token"},
    {.tokens = {"a", "b"}, .begin_token = UINT32_MAX, .says = "bos_token_id"},
};

static void put_words(struct gguf_builder *builder, const struct words *words)
{
    uint32_t tokens = 0, merges = 0;
    while (tokens < 8 && words->tokens[tokens] != NULL)
        tokens++;
    while (merges < 4 && words->merges[merges] != NULL)
        merges++;
    builder_string(builder, "tokenizer.ggml.model", "gpt2");
    builder_string(builder, "tokenizer.ggml.pre", "smollm");
    builder_array(builder, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, tokens);
    for (uint32_t i = 0; i < tokens; i++)
        builder_put_string(&builder->keys, words->tokens[i]);
    builder_array(builder, "tokenizer.ggml.token_type", GGUF_VALUE_I32, tokens);
    for (uint32_t i = 0; i < tokens; i++)
        builder_put_u32(&builder->keys, words->types[i] == 0 ? TOKEN_TYPE_NORMAL : words->types[i]);
    builder_array(builder, "tokenizer.ggml.merges", GGUF_VALUE_STRING, merges);
    for (uint32_t i = 0; i < merges; i++)
        builder_put_string(&builder->keys, words->merges[i]);
    if (words->begin_token != 0)
        builder_u32(builder, "tokenizer.ggml.bos_token_id", (uint32_t)words->begin_token);
    if (words->end_token != 0)
        builder_u32(builder, "tokenizer.ggml.eos_token_id", (uint32_t)words->end_token);
}

static void finish_and_try(struct bench *bench, struct gguf_builder *builder, struct outcome *out)
{
    size_t length;
    uint8_t *file = builder_finish(builder, &length);
    builder_free(builder);
    try_file(bench, file, length, out);
    free(file);
}

static void wrong_vocabularies(struct bench *bench, const struct load *load)
{
    (void)load;
    const struct whole_model model = whole_model_defaults();
    for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) {
        const struct words *words = &vocabularies[i];
        struct outcome outcome;
        struct gguf_builder builder;
        builder_init(&builder);
        tiny_shape_keys(&builder, &model.shape);
        put_words(&builder, words);
        tiny_tensors(&builder, &model.shape);
        finish_and_try(bench, &builder, &outcome);
        CHECK((outcome.coordinator == STATUS_OK) == (words->says == NULL));
        CHECK((outcome.worker == STATUS_OK) == !words->worker_refuses);
        if (words->says != NULL && !words->worker_refuses)
            expect_words(&outcome, words->says, false);
    }
}

/* The keys say one shape, the tensors have another. */
struct lie {
    size_t at; /* of the field in struct tiny_model */
    uint32_t value;
};

static const struct lie lies[] = {
    {offsetof(struct tiny_model, layers), 0},
    {offsetof(struct tiny_model, layers), 3},
    {offsetof(struct tiny_model, layers), UINT32_MAX},
    {offsetof(struct tiny_model, width), 0},
    {offsetof(struct tiny_model, width), 65},
    {offsetof(struct tiny_model, width), 1U << 31},
    {offsetof(struct tiny_model, ffn_width), 0},
    {offsetof(struct tiny_model, ffn_width), UINT32_MAX},
    {offsetof(struct tiny_model, heads), 0},
    {offsetof(struct tiny_model, heads), 3},
    {offsetof(struct tiny_model, heads), UINT32_MAX},
    {offsetof(struct tiny_model, kv_heads), 0},
    {offsetof(struct tiny_model, kv_heads), 3},
    {offsetof(struct tiny_model, kv_heads), UINT32_MAX},
    {offsetof(struct tiny_model, context), 0},
};

static void wrong_shapes(struct bench *bench, const struct load *load)
{
    (void)load;
    const struct whole_model model = whole_model_defaults();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct outcome outcome;
        struct gguf_builder builder;
        struct tiny_model told = model.shape;
        memcpy((uint8_t *)&told + lies[i].at, &lies[i].value, sizeof lies[i].value);
        builder_init(&builder);
        tiny_shape_keys(&builder, &told);
        small_put_keys(&builder, &model.tokenizer);
        tiny_tensors(&builder, &model.shape);
        finish_and_try(bench, &builder, &outcome);
        CHECK(outcome.coordinator != STATUS_OK && outcome.worker != STATUS_OK);
    }
    /* Fewer rows of the embedding than tokens: some id would have no row. */
    struct whole_model small = model;
    struct outcome outcome;
    struct gguf_builder builder;
    small.shape.vocabulary = 64;
    whole_model_build(&builder, &small);
    finish_and_try(bench, &builder, &outcome);
    CHECK(outcome.coordinator != STATUS_OK && outcome.worker != STATUS_OK);
}

/* ---- Running ---- */

struct group {
    const char *name;
    void (*run)(struct bench *bench, const struct load *load);
};

static const struct group groups[] = {
    {"cut at each border", cut_at_borders},     {"cut at random lengths", cut_at_random},
    {"bits flipped in the header", flip_bits},  {"numbers that cannot be", edit_numbers},
    {"wrong vocabularies", wrong_vocabularies}, {"wrong shapes", wrong_shapes},
};

static long peak_kib(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_maxrss;
}

static void open_bench(struct bench *bench)
{
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    bench->descriptor = memfd_create("model", MFD_CLOEXEC);
    CHECK(bench->descriptor >= 0);
    (void)snprintf(bench->path, sizeof bench->path, "/proc/self/fd/%d", bench->descriptor);
    char name[] = "test", model_option[] = "--model", pool_option[] = "--kv-pool-bytes=4M";
    char *arguments[] = {name, model_option, bench->path, pool_option};
    struct options_result result;
    const struct options_input input = {.program = &coordinator_options,
                                        .argc = sizeof arguments / sizeof arguments[0],
                                        .argv = arguments,
                                        .config = &bench->config,
                                        .config_bytes = sizeof bench->config};
    CHECK(options_read(&input, &result, NULL) == STATUS_OK);
    CHECK(backend_open(&options, &bench->backend, NULL) == STATUS_OK);
}

/* The undamaged file goes through both, or the rest would prove nothing. */
static void check_bench(struct bench *bench)
{
    struct outcome outcome;
    try_file(bench, bench->model.bytes, bench->model.length, &outcome);
    CHECK(outcome.coordinator == STATUS_OK && outcome.worker == STATUS_OK);
}

static void run_child(struct bench *bench, const struct group *group, const struct load *load)
{
    alarm(GROUP_SECONDS_MAX);
    open_bench(bench);
    check_bench(bench);
    long before_kib = peak_kib();
    *bench->tally = (struct tally){0};
    group->run(bench, load);
    bench->tally->growth_kib = peak_kib() - before_kib;
    exit(EXIT_SUCCESS);
}

static bool run_group(struct bench *bench, const struct group *group, const struct load *load)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        run_child(bench, group, load);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    const struct tally *tally = bench->tally;
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    if (!passed)
        (void)printf("%s: case %" PRIu64 " ended the process (status %#x, seed %" PRIu64 ")\n",
                     group->name, tally->number, (unsigned)status, load->seed);
    bool slow = tally->worst_ns > CASE_CPU_MS_MAX * NS_PER_MS;
    bool large = tally->growth_kib > GROWTH_KIB_MAX;
    (void)printf("%s: %" PRIu64 " files; coordinator took %u, worker took %u; worst %.1f ms%s, "
                 "peak grew by %ld KiB%s\n",
                 group->name, tally->number, tally->served, tally->loaded,
                 (double)tally->worst_ns / NS_PER_MS, slow ? " (too long)" : "", tally->growth_kib,
                 large ? " (too much)" : "");
    return passed && !slow && !large;
}

int main(int argument_count, char **arguments)
{
    if (argument_count < 3) {
        (void)fprintf(stderr, "usage: %s CUTS FLIPS [SEED]\n", arguments[0]);
        return EXIT_FAILURE;
    }
    static struct bench bench;
    struct load load = {.cuts = (uint32_t)strtoul(arguments[1], NULL, 10),
                        .flips = (uint32_t)strtoul(arguments[2], NULL, 10),
                        .seed = argument_count > 3 ? strtoull(arguments[3], NULL, 10) : 1};
    struct whole_model model = whole_model_defaults();
    bench.model.bytes = whole_model_file(&model, &bench.model.length);
    bench.tally =
        mmap(NULL, sizeof *bench.tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(bench.tally != MAP_FAILED);
    find_borders(&bench);
    bool passed = true;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        (void)fflush(stdout);
        passed = run_group(&bench, &groups[i], &load) && passed;
    }
    free(bench.model.bytes);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
