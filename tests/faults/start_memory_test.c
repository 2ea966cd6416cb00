/* The n-th request for memory fails, alone or with all that follow, for every n of all that a
 * program opens at its start and of what the tokenizer's threads do later. The answer is "out of
 * memory", by status and, where a client or an operator reads it, in words; nothing stays behind;
 * and the next try, with memory, works. */
#include "coordinator/served_model.h"
#include "coordinator/tokenizer_pool.h"
#include "faults/failing_memory.h"
#include "proto/segment_memory.h"
#include "support/directory_builder.h"
#include "support/segment_fixture.h"
#include "support/whole_model.h"
#include "worker/executor.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REQUESTS_MAX = 5000, IDS_MAX = 4096, LONG_WORD_BYTES = 3000, POOL_BYTES = 4 << 20 };

/* What was opened before, with memory, for those who need it. */
struct ground {
    char path[64];   /* of the model */
    char folder[64]; /* of a model as a directory */
    struct coordinator_config config, folder_config;
    struct served_model served;
    struct backend *backend;
    struct model model;
    struct kv_pool pool;
    struct segment_fixture segment;
    struct segment_extents extents;
    struct event_loop loop;
};

static struct ground ground;

static const struct chat_turn turns[] = {{{"user", 4}, {"hello", 5}}};

/* Longer than a scratch of its own holds. */
static struct byte_view long_word(void)
{
    static char word[LONG_WORD_BYTES];
    memset(word, 'a', sizeof word);
    return (struct byte_view){word, sizeof word};
}

static enum status open_served_model(struct text *why)
{
    struct served_model served;
    enum status status = served_model_open(&ground.config, &served, why);
    if (status == STATUS_OK)
        served_model_close(&served);
    return status;
}

static enum status open_served_directory(struct text *why)
{
    struct served_model served;
    enum status status = served_model_open(&ground.folder_config, &served, why);
    if (status == STATUS_OK)
        served_model_close(&served);
    return status;
}

static enum status encode_text(struct text *why)
{
    static struct tokenizer_scratch scratch;
    static uint32_t ids[IDS_MAX];
    struct token_list list = {.tokens = ids, .capacity = IDS_MAX};
    enum status status = tokenizer_encode(&ground.served.tokenizer, &scratch, long_word(),
                                          SPECIAL_TOKENS_PARSED, &list, why);
    assert_true(status == STATUS_OK ? list.count > 0 : list.count == 0);
    return status;
}

static enum status encode_chat(struct text *why)
{
    static struct tokenizer_scratch scratch;
    static uint32_t ids[IDS_MAX];
    struct token_list list = {.tokens = ids, .capacity = IDS_MAX};
    enum status status =
        tokenizer_encode_chat(&ground.served.tokenizer, &scratch, turns, 1, &list, why);
    assert_true(status == STATUS_OK ? list.count > 0 : list.count == 0);
    return status;
}

/* One order of each kind through a pool of one thread. */
static enum status order_text(struct tokenizer_pool *pool, const struct core_tokenize *order,
                              struct text *why)
{
    struct tokenized_text text;
    uint64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
    tokenizer_pool_order(pool, order);
    while (!tokenizer_pool_next(pool, &text)) {
        assert_true(clock_now_ns() < end_ns);
        assert_int_equal(event_loop_wait(&ground.loop, end_ns), STATUS_OK);
    }
    assert_int_equal(text.ticket, order->ticket);
    assert_true((text.status == STATUS_OK) == (text.ids != NULL && text.count > 0));
    if (text.status != STATUS_OK) {
        assert_true(text.why.text.length > 0); /* the client reads it */
        text_set(why, "%s", text.why.storage);
    }
    free(text.ids);
    return text.status;
}

static enum status tokenize_in_threads(struct text *why)
{
    static const uint8_t message[] = {0x82, 0x01, 0xa4, 'u', 's', 'e', 'r', 0x02, 0xa2, 'h', 'i'};
    struct byte_view word = long_word();
    const struct core_tokenize orders[] = {
        {.ticket = 1, .text = {word.bytes, (uint32_t)word.length}, .ids_max = IDS_MAX},
        {.ticket = 2,
         .messages = {.count = 1, .encoded = message, .encoded_bytes = sizeof message},
         .ids_max = IDS_MAX},
    };
    struct tokenizer_pool *pool = NULL;
    enum status status = tokenizer_pool_open(&ground.served.tokenizer, 1, 8, &ground.loop, &pool);
    if (status != STATUS_OK) {
        text_set(why, "%s", status_text(status));
        return status;
    }
    for (size_t i = 0; i < 2 && status == STATUS_OK; i++)
        status = order_text(pool, &orders[i], why);
    tokenizer_pool_close(pool);
    return status;
}

static enum status open_worker_model(struct text *why)
{
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 2};
    struct backend *backend = NULL;
    struct model model = {0};
    struct kv_pool pool = {0};
    enum status status = backend_open(&options, &backend, why);
    if (status == STATUS_OK)
        status = model_open(ground.path, backend, NULL, NULL, &model, why);
    if (status == STATUS_OK)
        status = kv_pool_open(backend, &ground.extents.geometry, POOL_BYTES, &pool, why);
    kv_pool_close(&pool);
    model_close(&model);
    backend_close(backend);
    return status;
}

static enum status open_worker_directory(struct text *why)
{
    struct model model = {0};
    enum status status = model_open(ground.folder, ground.backend, NULL, NULL, &model, why);
    model_close(&model);
    return status;
}

static enum status open_executor(struct text *why)
{
    const struct executor_options options = {
        .model = &ground.model,
        .backend = ground.backend,
        .pool = &ground.pool,
        .segment = &ground.segment.reader,
    };
    struct executor *executor = NULL;
    enum status status = executor_open(&options, &executor, why);
    executor_close(executor);
    return status;
}

static enum status make_segments(struct text *why)
{
    const struct segment_identity identity = {.epoch = 1, .creator_pid = 1};
    struct shm ours = {.descriptor = -1}, theirs = {.descriptor = -1};
    struct segment_writer writer;
    struct segment_reader reader;
    enum status status =
        coordinator_segment_create(&ground.extents, &identity, &ours, &writer, why);
    if (status == STATUS_OK) {
        int copy = dup(ours.descriptor);
        assert_true(copy >= 0);
        status = coordinator_segment_open(copy, &theirs, &reader, why);
        if (status != STATUS_OK)
            close(copy);
    }
    if (status == STATUS_OK)
        shm_close(&theirs);
    if (ours.descriptor >= 0)
        shm_close(&ours);
    return status;
}

struct scenario {
    const char *name;
    enum status (*run)(struct text *why);
    bool is_system; /* a mapping that fails is an error of the system there */
};

static const struct scenario scenarios[] = {
    {"coordinator: model, vocabulary, tokenizer", open_served_model, false},
    {"coordinator: a directory", open_served_directory, false},
    {"text to ids", encode_text, false},
    {"chat to ids", encode_chat, false},
    {"threads of the tokenizer, a text and a chat", tokenize_in_threads, false},
    {"worker: backend, weights, pool", open_worker_model, false},
    {"worker: a directory", open_worker_directory, false},
    {"worker: executor of an epoch", open_executor, false},
    {"shared segments of an epoch", make_segments, true},
};

static bool run_once(const struct scenario *scenario, uint64_t nth, bool for_good)
{
    struct reason reason;
    int64_t held = memory_blocks_held();
    memory_fail_at(nth, for_good);
    enum status status = scenario->run(reason_init(&reason));
    bool failed = memory_recovers();
    if (failed && status != STATUS_OUT_OF_MEMORY &&
        !(scenario->is_system && status == STATUS_SYSTEM))
        fail_msg("%s, request %llu: %s (%s)", scenario->name, (unsigned long long)nth,
                 status_text(status), reason.storage);
    if (!failed)
        assert_int_equal(status, STATUS_OK);
    if (memory_blocks_held() != held)
        fail_msg("%s, request %llu: %lld blocks or pages stay behind", scenario->name,
                 (unsigned long long)nth, (long long)(memory_blocks_held() - held));
    return failed;
}

static void every_request_of_a_start_may_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        uint64_t counts[2] = {0};
        for (int for_good = 0; for_good < 2; for_good++)
            while (run_once(&scenarios[i], counts[for_good] + 1, for_good == 1)) {
                counts[for_good]++;
                assert_true(counts[for_good] < REQUESTS_MAX);
            }
        print_message("%s: %llu requests failed alone, %llu with all that follow\n",
                      scenarios[i].name, (unsigned long long)counts[0],
                      (unsigned long long)counts[1]);
        assert_true(counts[0] > 0);
    }
}

/* Steps of a worker take no memory at all, so none can fail. */
static void a_step_takes_no_memory(void **state)
{
    (void)state;
    static struct result result;
    const struct executor_options options = {
        .model = &ground.model,
        .backend = ground.backend,
        .pool = &ground.pool,
        .segment = &ground.segment.reader,
    };
    struct executor *executor = NULL;
    struct plan_verdict verdict;
    struct reason reason;
    const uint32_t tokens[] = {1, 2, 3};
    assert_int_equal(executor_open(&options, &executor, reason_init(&reason)), STATUS_OK);
    segment_fixture_tenant(&ground.segment, 0, NULL);
    segment_write_tokens(&ground.segment.writer, 0, 0, tokens, 3);
    segment_fixture_row(&ground.segment, 0, 0, 3, PLAN_ROW_SAMPLE);
    for (uint32_t position = 3; position < 40; position++) {
        segment_fixture_publish(&ground.segment);
        memory_fail_at(1, true);
        enum status status =
            executor_run(executor, &ground.segment.plan, &result, &verdict, reason_init(&reason));
        assert_false(memory_recovers());
        assert_int_equal(status, STATUS_OK);
        segment_fixture_next(&ground.segment);
        segment_fixture_row(&ground.segment, 0, position, 1,
                            PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    }
    executor_close(executor);
}

static int write_model(void)
{
    struct whole_model model = whole_model_defaults();
    size_t length;
    uint8_t *file = whole_model_file(&model, &length);
    int descriptor = memfd_create("model", MFD_CLOEXEC);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, file, length), length);
    free(file);
    return descriptor;
}

static const char *const FOLDER_FILES[] = {"config.json", "generation_config.json", "a.safetensors",
                                           "model.safetensors.index.json"};

static void put_file(const char *name, const void *bytes, size_t length)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", ground.folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* One layer in one shard, so that every kind of file is read. */
static void write_directory(void)
{
    struct tiny_model model = TINY_MODEL;
    char config[TINY_CONFIG_BYTES], index[4096] = "{\"weight_map\":{";
    size_t length, used = strlen(index);
    struct model_file *file = NULL;
    model.layers = 1;
    model.context = 256;
    (void)snprintf(ground.folder, sizeof ground.folder, "/tmp/start_memory_test.XXXXXX");
    assert_non_null(mkdtemp(ground.folder));
    tiny_config(&model, "", config);
    uint8_t *tensors = tiny_directory_tensors(&model, &length);
    const struct model_file_parts parts = {
        .config = {.config = config, .config_bytes = strlen(config)},
        .tensors = tensors,
        .tensors_bytes = length,
    };
    assert_int_equal(model_file_open_parts(&parts, &file, NULL), STATUS_OK);
    for (uint32_t i = 0; i < model_file_tensor_count(file); i++)
        used += (size_t)snprintf(index + used, sizeof index - used, "%s\"%s\":\"a.safetensors\"",
                                 i > 0 ? "," : "", model_file_tensor_at(file, i)->name);
    (void)snprintf(index + used, sizeof index - used, "}}");
    model_file_close(file);
    put_file(FOLDER_FILES[0], config, strlen(config));
    put_file(FOLDER_FILES[1], "{\"eos_token_id\":[2,3]}", 22);
    put_file(FOLDER_FILES[2], tensors, length);
    put_file(FOLDER_FILES[3], index, strlen(index));
    free(tensors);
}

static int open_ground(void **state)
{
    (void)state;
    write_directory();
    (void)snprintf(ground.path, sizeof ground.path, "/proc/self/fd/%d", write_model());
    char name[] = "test", model_option[] = "--model", pool_option[] = "--kv-pool-bytes=4M";
    char slots_option[] = "--slots=4";
    char *arguments[] = {name, model_option, ground.path, pool_option, slots_option};
    struct options_result result;
    const struct options_input input = {.program = &coordinator_options,
                                        .argc = sizeof arguments / sizeof arguments[0],
                                        .argv = arguments,
                                        .config = &ground.config,
                                        .config_bytes = sizeof ground.config};
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    assert_int_equal(options_read(&input, &result, NULL), STATUS_OK);
    ground.folder_config = ground.config;
    memcpy(ground.folder_config.model, ground.folder, strlen(ground.folder) + 1);
    assert_int_equal(served_model_open(&ground.config, &ground.served, NULL), STATUS_OK);
    ground.extents = ground.served.extents;
    assert_int_equal(backend_open(&options, &ground.backend, NULL), STATUS_OK);
    assert_int_equal(model_open(ground.path, ground.backend, NULL, NULL, &ground.model, NULL),
                     STATUS_OK);
    assert_int_equal(
        kv_pool_open(ground.backend, &ground.extents.geometry, POOL_BYTES, &ground.pool, NULL),
        STATUS_OK);
    segment_fixture_open(&ground.segment, &ground.extents, 0);
    return event_loop_open(&ground.loop) == STATUS_OK ? 0 : -1;
}

static int close_ground(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof FOLDER_FILES / sizeof FOLDER_FILES[0]; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", ground.folder, FOLDER_FILES[i]);
        (void)unlink(path);
    }
    (void)rmdir(ground.folder);
    event_loop_close(&ground.loop);
    segment_fixture_close(&ground.segment);
    kv_pool_close(&ground.pool);
    model_close(&ground.model);
    backend_close(ground.backend);
    served_model_close(&ground.served);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_of_a_start_may_fail),
        cmocka_unit_test(a_step_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, open_ground, close_ground);
}
