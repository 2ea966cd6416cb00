/* Damaged Hugging Face directories at the loaders of both programs: tensors and index cut at every
 * border and at random lengths, bits flipped in the header, in config.json and in the index, and
 * directories that are wrong on purpose. Each is refused with a reason or loaded, in bounded time
 * and memory, and both programs say the same of the tensors. Cases run in a child: one that dies,
 * or hangs until its alarm, is named by its number.
 * usage: model_directory_test CUTS FLIPS [SEED]   (how many random ones) */
#include "coordinator/served_model.h"
#include "support/directory_builder.h"
#include "worker/model.h"

#include "common/clock.h"
#include "common/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CASE_CPU_MS_MAX = 2000, /* generous: sanitizers and a loaded machine */
    GROUP_SECONDS_MAX = 500,
    PATH_BYTES = 128,
    FLIPS_AT_ONCE_MAX = 8,
    FILES_MAX = 4,
};

/* What all cases of a group together may add to the peak of the process. Sanitizers keep freed
 * memory for a while: 256 MiB of it, here in small pieces of JSON with as much again around them.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { GROWTH_KIB_MAX = 640 << 10 };
#else
enum { GROWTH_KIB_MAX = 48 << 10 };
#endif

static const char CONFIG[] = "config.json", TENSORS[] = "model.safetensors",
                  SHARD[] = "a.safetensors", INDEX[] = "model.safetensors.index.json";

struct file {
    const char *name;
    uint8_t *bytes; /* owned */
    size_t length;
};

struct tally {
    uint64_t number; /* of the case at hand */
    uint32_t loaded, served, cases;
    uint64_t worst_ns;
    long growth_kib;
};

struct bench {
    struct file files[FILES_MAX]; /* of a sound directory */
    uint32_t file_count;
    char folder[PATH_BYTES];
    struct backend *backend;
    struct coordinator_config config;
    struct tally *tally; /* shared with the parent */
};

struct outcome {
    enum status coordinator, worker;
    struct reason coordinator_reason, worker_reason;
};

/* ---- One directory at both loaders ---- */

static void write_file(const struct bench *bench, const char *name, const uint8_t *bytes,
                       size_t length)
{
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", bench->folder, name);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(descriptor >= 0 && write(descriptor, bytes, length) == (ssize_t)length);
    CHECK(close(descriptor) == 0);
}

static void restore_file(const struct bench *bench, uint32_t file)
{
    write_file(bench, bench->files[file].name, bench->files[file].bytes, bench->files[file].length);
}

static uint64_t cpu_ns(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static void must_be_named(enum status status, const struct reason *reason, const char *program)
{
    bool refusal = status == STATUS_BAD_FILE || status == STATUS_UNSUPPORTED ||
                   status == STATUS_TOO_LARGE || status == STATUS_INVALID ||
                   status == STATUS_NOT_FOUND;
    if (refusal && reason->text.length > 0)
        return;
    (void)fprintf(stderr, "%s: %s: %s\n", program, status_text(status), reason->storage);
    CHECK(refusal && reason->text.length > 0);
}

static void try_directory(struct bench *bench, struct outcome *out)
{
    struct served_model served;
    struct model model = {0};
    uint64_t begin_ns = cpu_ns();
    out->coordinator =
        served_model_open(&bench->config, &served, reason_init(&out->coordinator_reason));
    out->worker = model_open(bench->folder, bench->backend, NULL, NULL, &model,
                             reason_init(&out->worker_reason));
    if (out->coordinator == STATUS_OK && out->worker == STATUS_OK)
        CHECK(id128_equal(&served.shape.metadata_hash, &model.shape.metadata_hash));
    if (out->coordinator == STATUS_OK) {
        CHECK(served.ids_only && served.shape.tokens == served.shape.vocabulary);
        served_model_close(&served);
    } else {
        must_be_named(out->coordinator, &out->coordinator_reason, "coordinator");
    }
    if (out->worker == STATUS_OK)
        model_close(&model);
    else
        must_be_named(out->worker, &out->worker_reason, "worker");
    uint64_t used_ns = cpu_ns() - begin_ns;
    struct tally *tally = bench->tally;
    tally->worst_ns = used_ns > tally->worst_ns ? used_ns : tally->worst_ns;
    tally->served += out->coordinator == STATUS_OK;
    tally->loaded += out->worker == STATUS_OK;
    tally->number++;
}

static void must_refuse(struct bench *bench, const char *says)
{
    struct outcome outcome;
    try_directory(bench, &outcome);
    if (outcome.coordinator == STATUS_OK || outcome.worker == STATUS_OK ||
        (says != NULL && (strstr(outcome.coordinator_reason.storage, says) == NULL ||
                          strstr(outcome.worker_reason.storage, says) == NULL))) {
        (void)fprintf(stderr, "expected \"%s\"; coordinator: %s; worker: %s\n",
                      says == NULL ? "" : says, outcome.coordinator_reason.storage,
                      outcome.worker_reason.storage);
        CHECK(says == NULL);
    }
    CHECK(outcome.coordinator != STATUS_OK && outcome.worker != STATUS_OK);
}

/* ---- Groups ---- */

struct load {
    uint32_t cuts, flips;
    uint64_t seed;
};

/* A file that lost its end; of config.json a blank may be lost. */
static void cut(struct bench *bench, uint32_t file, size_t length)
{
    CHECK(length < bench->files[file].length);
    write_file(bench, bench->files[file].name, bench->files[file].bytes, length);
    must_refuse(bench, NULL);
}

static size_t header_bytes(const struct file *file)
{
    uint64_t length;
    memcpy(&length, file->bytes, sizeof length);
    return sizeof length + (size_t)length;
}

/* Each border of the tensors and of the header, and one byte on either side. */
static void cut_at_borders(struct bench *bench, const struct load *load)
{
    (void)load;
    for (uint32_t f = 0; f < bench->file_count; f++) {
        const struct file *file = &bench->files[f];
        struct safetensors *tensors = NULL;
        if (strstr(file->name, ".safetensors") == NULL || file->name == INDEX)
            continue;
        CHECK(safetensors_open_memory(file->bytes, file->length, &tensors, NULL) == STATUS_OK);
        for (size_t i = 0; i <= 9; i++)
            cut(bench, f, i);
        for (uint32_t i = 0; i < safetensors_tensor_count(tensors); i++)
            for (size_t step = 0; step < 3; step++)
                cut(bench, f, (size_t)safetensors_tensor_at(tensors, i)->offset + step - 1);
        cut(bench, f, file->length - 1);
        restore_file(bench, f);
        safetensors_close(tensors);
    }
}

static void cut_at_random(struct bench *bench, const struct load *load)
{
    struct random random = {load->seed};
    for (uint32_t i = 0; i < load->cuts; i++) {
        uint32_t f = i % bench->file_count;
        size_t below = bench->files[f].length;
        if (i % 2 == 0 && strstr(bench->files[f].name, ".json") == NULL)
            below = header_bytes(&bench->files[f]);
        cut(bench, f, random_below(&random, (uint32_t)below));
        restore_file(bench, f);
    }
}

/* In the header of tensors, anywhere in a JSON file. What is accepted after it has the same hash in
 * both programs. */
static void flip_bits(struct bench *bench, const struct load *load)
{
    struct random random = {load->seed + 1};
    struct outcome outcome;
    for (uint32_t i = 0; i < load->flips; i++) {
        uint32_t f = i % bench->file_count;
        struct file *file = &bench->files[f];
        bool json = strstr(file->name, ".json") != NULL;
        size_t below = json ? file->length : header_bytes(file);
        size_t places[FLIPS_AT_ONCE_MAX];
        uint8_t masks[FLIPS_AT_ONCE_MAX];
        uint32_t count = i % 4 == 0 ? 1 + random_below(&random, FLIPS_AT_ONCE_MAX) : 1;
        for (uint32_t j = 0; j < count; j++) {
            places[j] = random_below(&random, (uint32_t)below);
            masks[j] = (uint8_t)(1u << random_below(&random, 8));
            file->bytes[places[j]] ^= masks[j];
        }
        restore_file(bench, f);
        try_directory(bench, &outcome);
        CHECK(outcome.coordinator == outcome.worker || outcome.coordinator == STATUS_INVALID ||
              outcome.worker == STATUS_BAD_FILE);
        for (uint32_t j = 0; j < count; j++)
            file->bytes[places[j]] ^= masks[j];
        restore_file(bench, f);
    }
}

/* Replaces the first `from` of a file, as text. */
static void edit(struct bench *bench, const char *name, const char *from, const char *to,
                 const char *says)
{
    for (uint32_t f = 0; f < bench->file_count; f++) {
        const struct file *file = &bench->files[f];
        if (strcmp(file->name, name) != 0)
            continue;
        struct builder_bytes changed = {0};
        const uint8_t *found = memmem(file->bytes, file->length, from, strlen(from));
        CHECK(found != NULL);
        size_t before = (size_t)(found - file->bytes);
        builder_put(&changed, file->bytes, before);
        builder_put(&changed, to, strlen(to));
        builder_put(&changed, found + strlen(from), file->length - before - strlen(from));
        if (strstr(name, ".json") == NULL) {
            uint64_t length = header_bytes(file) - 8 + strlen(to) - strlen(from);
            memcpy(changed.bytes, &length, sizeof length);
        }
        write_file(bench, name, changed.bytes, changed.length);
        must_refuse(bench, says);
        restore_file(bench, f);
        free(changed.bytes);
    }
}

/* clang-format off */
static const struct {
    const char *name, *from, *to, *says;
} edits[] = {
    {CONFIG, "\"model_type\":\"llama\"", "\"model_type\":\"mistral\"", "only \"llama\" is supported"},
    {CONFIG, "\"vocab_size\":320", "\"vocab_size\":319", "expected 64 x 319"},
    {CONFIG, "\"vocab_size\":320", "\"vocab_size\":99999999999999999999", "no valid JSON"},
    {CONFIG, "\"vocab_size\":320", "\"vocab_size\":-320", "holds -320"},
    {CONFIG, "\"num_hidden_layers\":2", "\"num_hidden_layers\":3", "\"model.layers.2.input_layernorm.weight\" is missing"},
    {CONFIG, "\"num_hidden_layers\":2", "\"num_hidden_layers\":1", "is none that a llama model of 1 layers has"},
    {CONFIG, "\"num_hidden_layers\":2", "\"num_hidden_layers\":4294967297", "expected 1 to 512"},
    {CONFIG, "\"num_attention_heads\":4", "\"num_attention_heads\":8", "expected 64 x 128"},
    {CONFIG, "\"num_key_value_heads\":2", "\"num_key_value_heads\":4", "expected 64 x 64"},
    {CONFIG, "\"head_dim\":16", "\"head_dim\":24", "expected 64 x 96"},
    {CONFIG, "\"head_dim\":16", "\"head_dim\":17", "a multiple of 8"},
    {CONFIG, "\"intermediate_size\":128", "\"intermediate_size\":129", "expected 64 x 129"},
    {CONFIG, "\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false", "\"lm_head.weight\" is missing"},
    {CONFIG, "\"rope_type\":\"default\"", "\"rope_type\":\"longrope\"", "holds \"longrope\""},
    {CONFIG, "{", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]],", "nested 25 deep"},
    {TENSORS, "[320,64]", "[320,65]", "its shape and dtype"},
    {TENSORS, "[320,64]", "[64,320]", "has the extents 320 x 64 x 1 x 1, expected 64 x 320"},
    {TENSORS, "[320,64]", "[9223372036854775807,2]", "63 bits"},
    {TENSORS, "\"data_offsets\":[0,", "\"data_offsets\":[4,", "bytes, but its shape"},
    {TENSORS, "\"data_offsets\":[0,81920]", "\"data_offsets\":[81920,163840]", "neither overlap nor leave gaps"},
    {TENSORS, "\"dtype\":\"F32\"", "\"dtype\":\"U32\"", "is of type U32, which is not supported"},
    {TENSORS, "\"dtype\":\"F32\"", "\"dtype\":\"E32\"", "unknown dtype"},
    {TENSORS, "model.norm.weight", "model.norm.WEIGHT", "\"model.norm.weight\" is missing"},
    {TENSORS, "model.norm.weight", "model.embed_tokens.weight", "duplicate"},
    {TENSORS, "model.norm.weight", "", "a name of 0 bytes"},
    {INDEX, "a.safetensors", "../a.safetensors", "is not in a file of this directory"},
    {INDEX, "a.safetensors", "b.safetensors", "b.safetensors: cannot be opened"},
    {INDEX, "model.norm.weight", "lm_head.weight", "is not in"},
    {INDEX, "weight_map", "weight_mop", "\"weight_map\" is missing"},
};
/* clang-format on */

static void edit_texts(struct bench *bench, const struct load *load)
{
    (void)load;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
        edit(bench, edits[i].name, edits[i].from, edits[i].to, edits[i].says);
}

/* A header as large as it may be, of brackets and of numbers: refused before it is built. */
static void bombs(struct bench *bench, const struct load *load)
{
    (void)load;
    const size_t length = SAFETENSORS_HEADER_BYTES_MAX + 8;
    uint8_t *bytes = malloc(length);
    CHECK(bytes != NULL);
    const uint64_t header = length - 8;
    const struct {
        const char *fill, *says;
    } kinds[] = {{"[[", "nested"}, {"{\"", "nested"}, {"1,", "values; at most"}, {"  ", NULL}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (size_t j = 0; j < length; j++)
            bytes[j] = (uint8_t)kinds[i].fill[j % 2];
        memcpy(bytes, &header, sizeof header);
        memcpy(bytes + 8, "{\"a\":[", 6);
        for (uint32_t f = 0; f < bench->file_count; f++)
            if (bench->files[f].name == TENSORS || bench->files[f].name == SHARD) {
                write_file(bench, bench->files[f].name, bytes, length);
                must_refuse(bench, kinds[i].says);
                restore_file(bench, f);
            }
    }
    free(bytes);
}

/* ---- Sound directories ---- */

static void add_text(struct bench *bench, const char *name, const char *text)
{
    size_t length = strlen(text);
    uint8_t *bytes = malloc(length);
    CHECK(bytes != NULL && bench->file_count < FILES_MAX);
    memcpy(bytes, text, length);
    bench->files[bench->file_count++] = (struct file){name, bytes, length};
}

static struct tiny_model small_model(void)
{
    struct tiny_model model = TINY_MODEL;
    model.context = 512;
    return model;
}

static void make_files(struct bench *bench, bool sharded)
{
    struct tiny_model model = small_model();
    char config[TINY_CONFIG_BYTES];
    size_t length;
    tiny_config(&model, "", config);
    add_text(bench, CONFIG, config);
    uint8_t *bytes = tiny_directory_tensors(&model, &length);
    bench->files[bench->file_count++] = (struct file){sharded ? SHARD : TENSORS, bytes, length};
    if (!sharded)
        return;
    struct safetensors *tensors = NULL;
    struct builder_bytes index = {0};
    CHECK(safetensors_open_memory(bytes, length, &tensors, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < safetensors_tensor_count(tensors); i++) {
        char entry[256];
        int written = snprintf(entry, sizeof entry, "%s\"%s\":\"%s\"", i > 0 ? "," : "",
                               safetensors_tensor_at(tensors, i)->name, SHARD);
        builder_put(&index, entry, (size_t)written);
    }
    builder_put(&index, "}}", 3);
    char *text = malloc(index.length + 32);
    CHECK(text != NULL);
    (void)snprintf(text, index.length + 32, "{\"weight_map\":{%s", (const char *)index.bytes);
    add_text(bench, INDEX, text);
    free(text);
    free(index.bytes);
    safetensors_close(tensors);
}

/* ---- Running ---- */

static const struct group {
    const char *name;
    void (*run)(struct bench *bench, const struct load *load);
} groups[] = {
    {"cut at each border", cut_at_borders},
    {"cut at random lengths", cut_at_random},
    {"bits flipped", flip_bits},
    {"texts that are wrong", edit_texts},
    {"headers that explode", bombs},
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
    char name[] = "test", model_option[] = "--model", pool_option[] = "--kv-pool-bytes=4M";
    char *arguments[] = {name, model_option, bench->folder, pool_option};
    struct options_result result;
    const struct options_input input = {.program = &coordinator_options,
                                        .argc = sizeof arguments / sizeof arguments[0],
                                        .argv = arguments,
                                        .config = &bench->config,
                                        .config_bytes = sizeof bench->config};
    CHECK(options_read(&input, &result, NULL) == STATUS_OK);
    CHECK(backend_open(&options, &bench->backend, NULL) == STATUS_OK);
    for (uint32_t f = 0; f < bench->file_count; f++)
        restore_file(bench, f);
    /* The undamaged directory goes through both, or the rest would prove nothing. */
    struct outcome outcome;
    try_directory(bench, &outcome);
    CHECK(outcome.coordinator == STATUS_OK && outcome.worker == STATUS_OK);
}

static void run_child(struct bench *bench, const struct group *group, const struct load *load)
{
    alarm(GROUP_SECONDS_MAX);
    open_bench(bench);
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
    (void)printf("%s: %" PRIu64 " directories; coordinator took %u, worker took %u; worst %.1f "
                 "ms%s, peak grew by %ld KiB%s\n",
                 group->name, tally->number, tally->served, tally->loaded,
                 (double)tally->worst_ns / NS_PER_MS, slow ? " (too long)" : "", tally->growth_kib,
                 large ? " (too much)" : "");
    return passed && !slow && !large;
}

static bool run_all(bool sharded, const struct load *load)
{
    struct bench bench = {.folder = "/tmp/model_directory_test.XXXXXX"};
    bench.tally =
        mmap(NULL, sizeof *bench.tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(bench.tally != MAP_FAILED && mkdtemp(bench.folder) != NULL);
    make_files(&bench, sharded);
    bool passed = true;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        (void)fflush(stdout);
        passed = run_group(&bench, &groups[i], load) && passed;
    }
    for (uint32_t f = 0; f < bench.file_count; f++) {
        char path[2 * PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", bench.folder, bench.files[f].name);
        (void)unlink(path);
        free(bench.files[f].bytes);
    }
    (void)munmap(bench.tally, sizeof *bench.tally);
    return rmdir(bench.folder) == 0 && passed;
}

int main(int argument_count, char **arguments)
{
    if (argument_count < 3) {
        (void)fprintf(stderr, "usage: %s CUTS FLIPS [SEED]\n", arguments[0]);
        return EXIT_FAILURE;
    }
    struct load load = {.cuts = (uint32_t)strtoul(arguments[1], NULL, 10),
                        .flips = (uint32_t)strtoul(arguments[2], NULL, 10),
                        .seed = argument_count > 3 ? strtoull(arguments[3], NULL, 10) : 1};
    bool passed = run_all(false, &load);
    return run_all(true, &load) && passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
