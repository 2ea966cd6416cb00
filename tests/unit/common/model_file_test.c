#include "common/model_file.h"

#include "support/directory_builder.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/model_file_test.XXXXXX";

static const char *const FILES[] = {
    "config.json",   "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "a.safetensors", "b.safetensors",          "tokenizer.json",    "model.gguf",
};

static void path_of(const char *name, char out_path[128])
{
    snprintf(out_path, 128, "%s/%s", folder, name);
}

static void put(const char *name, const void *bytes, size_t length)
{
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static int empty_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        char path[128];
        path_of(FILES[i], path);
        (void)unlink(path);
    }
    return 0;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)empty_folder(state);
    return rmdir(folder);
}

static void put_config(void)
{
    char config[TINY_CONFIG_BYTES];
    tiny_config(&TINY_MODEL, "", config);
    put_text("config.json", config);
}

/* One matrix of 2 x 2 in a file of its own. */
static void put_shard(const char *file, const char *tensor)
{
    static const float zeros[4];
    struct directory_builder builder = {0};
    size_t length;
    directory_tensor(&builder, tensor, "F32", 2, 2, zeros);
    uint8_t *bytes = directory_finish(&builder, &length);
    put(file, bytes, length);
    directory_free(&builder);
    free(bytes);
}

static enum status open_path(const char *path, struct model_file **out_file, struct reason *reason)
{
    *out_file = NULL;
    enum status status = model_file_open(path, out_file, reason_init(reason));
    assert_int_equal(status == STATUS_OK, *out_file != NULL);
    return status;
}

static void must_refuse(enum status expected, const char *says)
{
    struct model_file *file;
    struct reason reason;
    enum status status = open_path(folder, &file, &reason);
    if (status != expected || strstr(reason.storage, says) == NULL)
        fail_msg("%s: %s", status_text(status), reason.storage);
}

static void a_directory_and_a_file_have_one_view(void **state)
{
    (void)state;
    size_t length;
    uint8_t *tensors = tiny_directory_tensors(&TINY_MODEL, &length);
    put("model.safetensors", tensors, length);
    put_config();
    free(tensors);
    uint8_t *gguf = tiny_model_file(&TINY_MODEL, &length);
    put("model.gguf", gguf, length);
    free(gguf);
    struct model_file *directory, *file;
    struct reason reason;
    char path[128];
    path_of("model.gguf", path);
    assert_int_equal(open_path(folder, &directory, &reason), STATUS_OK);
    assert_int_equal(open_path(path, &file, &reason), STATUS_OK);
    assert_int_equal(model_file_kind_of(directory), MODEL_FILE_DIRECTORY);
    assert_int_equal(model_file_kind_of(file), MODEL_FILE_GGUF);
    assert_true(model_file_gguf(directory) == NULL && model_file_config(directory) != NULL);
    assert_true(model_file_gguf(file) != NULL && model_file_config(file) == NULL);
    assert_int_equal(model_file_tensor_count(directory), model_file_tensor_count(file));
    assert_false(model_file_has_tokenizer_json(directory));
    for (enum model_tensor role = MODEL_TENSOR_EMBEDDING; role < MODEL_TENSOR_COUNT; role++) {
        const struct model_file_tensor *a = model_file_find(directory, role, 1);
        const struct model_file_tensor *b = model_file_find(file, role, 1);
        assert_int_equal(a != NULL, b != NULL);
        if (a == NULL)
            continue;
        assert_memory_equal(a->extent, b->extent, sizeof a->extent);
        assert_true(a->type == b->type && a->bytes == b->bytes);
        if (role != MODEL_TENSOR_ATTENTION_Q && role != MODEL_TENSOR_ATTENTION_K)
            assert_memory_equal(a->content, b->content, a->bytes);
        model_file_drop(directory, a);
        model_file_drop(file, b);
    }
    assert_null(model_file_find(directory, MODEL_TENSOR_FFN_UP, 2));
    model_file_close(directory);
    model_file_close(file);
}

static void shards_are_found_by_the_index(void **state)
{
    (void)state;
    put_config();
    put_shard("a.safetensors", "lm_head.weight");
    put_shard("b.safetensors", "model.embed_tokens.weight");
    put_text("tokenizer.json", "{}");
    put_text("model.safetensors.index.json",
             "{\"metadata\":{},\"weight_map\":{\"model.embed_tokens.weight\":\"b.safetensors\","
             "\"lm_head.weight\":\"a.safetensors\"}}");
    struct model_file *file;
    struct reason reason;
    if (open_path(folder, &file, &reason) != STATUS_OK)
        fail_msg("%s", reason.storage);
    assert_int_equal(model_file_tensor_count(file), 2);
    assert_int_equal(model_file_find(file, MODEL_TENSOR_OUTPUT, 0)->shard, 0);
    assert_int_equal(model_file_find(file, MODEL_TENSOR_EMBEDDING, 0)->shard, 1);
    assert_true(model_file_has_tokenizer_json(file));
    model_file_close(file);
    /* One file of that name wins, as with transformers. */
    put_shard("model.safetensors", "lm_head.weight");
    assert_int_equal(open_path(folder, &file, &reason), STATUS_OK);
    assert_int_equal(model_file_tensor_count(file), 1);
    model_file_close(file);
}

#define MAP(entries) "{\"weight_map\":{" entries "}}"

static void refuses_an_index_that_is_wrong(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct {
        const char *index;
        enum status status;
        const char *says;
    } cases[] = {
        {"{}", STATUS_BAD_FILE, "index.json: key \"weight_map\" is missing"},
        {"x", STATUS_BAD_FILE, "index.json: no valid JSON"},
        {MAP(""), STATUS_TOO_LARGE, "names 0 files"},
        {MAP("\"lm_head.weight\":7"), STATUS_BAD_FILE, "\"lm_head.weight\" is not in a file of this directory named *.safetensors"},
        {MAP("\"lm_head.weight\":\"../a.safetensors\""), STATUS_BAD_FILE, "is not in a file of this directory"},
        {MAP("\"lm_head.weight\":\"/etc/a.safetensors\""), STATUS_BAD_FILE, "is not in a file of this directory"},
        {MAP("\"lm_head.weight\":\".safetensors\""), STATUS_BAD_FILE, "is not in a file of this directory"},
        {MAP("\"lm_head.weight\":\"a.bin\""), STATUS_BAD_FILE, "is not in a file of this directory"},
        {MAP("\"lm_head.weight\":\"c.safetensors\""), STATUS_NOT_FOUND, "c.safetensors: cannot be opened"},
        {MAP("\"lm_head.weight\":\"b.safetensors\""), STATUS_BAD_FILE, "\"lm_head.weight\" is not in b.safetensors"},
        {MAP("\"lm_head.weight\":\"b.safetensors\",\"model.norm.weight\":\"a.safetensors\""), STATUS_BAD_FILE, "is not in"},
        {MAP("\"lm_head.weight\":\"a.safetensors\",\"x\":\"a.safetensors\""), STATUS_BAD_FILE, "\"x\" is not in a.safetensors"},
        {MAP("\"lm_head.weight\":\"a.safetensors\",\"lm_head.weight\":\"b.safetensors\""), STATUS_BAD_FILE, "duplicate"},
    };
    /* clang-format on */
    put_config();
    put_shard("a.safetensors", "lm_head.weight");
    put_shard("b.safetensors", "model.norm.weight");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text("model.safetensors.index.json", cases[i].index);
        must_refuse(cases[i].status, cases[i].says);
    }
    put_text("model.safetensors.index.json",
             MAP("\"lm_head.weight\":\"a.safetensors\",\"model.norm.weight\":\"b.safetensors\""));
    put_shard("b.safetensors", "lm_head.weight");
    must_refuse(STATUS_BAD_FILE, "tensor \"lm_head.weight\" lies in two files");
}

/* More files than are read, a name that no file can have, and a path that leaves no room. */
static void refuses_what_passes_a_bound(void **state)
{
    (void)state;
    struct builder_bytes index = {0};
    char entry[400];
    put_config();
    builder_put(&index, "{\"weight_map\":{", 15);
    for (int i = 0; i <= MODEL_FILE_SHARDS_MAX; i++) {
        int length =
            snprintf(entry, sizeof entry, "%s\"t%d\":\"%d.safetensors\"", i > 0 ? "," : "", i, i);
        builder_put(&index, entry, (size_t)length);
    }
    builder_put(&index, "}}", 2);
    put("model.safetensors.index.json", index.bytes, index.length);
    must_refuse(STATUS_TOO_LARGE, "names 1025 files; 1 to 1024 are read");
    free(index.bytes);
    snprintf(entry, sizeof entry, "{\"weight_map\":{\"t\":\"%0244d.safetensors\"}}", 0);
    put_text("model.safetensors.index.json", entry);
    must_refuse(STATUS_BAD_FILE, "is not in a file of this directory");
    char path[4092];
    size_t length = strlen(folder);
    memcpy(path, folder, length);
    while (length + 2 < sizeof path) { /* the same directory, by a long way */
        memcpy(path + length, "/.", 2);
        length += 2;
    }
    path[length] = '\0';
    struct model_file *file;
    struct reason reason;
    assert_int_equal(open_path(path, &file, &reason), STATUS_INVALID);
    assert_string_equal(reason.storage, "--model: the path of its config.json exceeds 4095 bytes");
}

/* A shard that holds more than the index lists. */
static void refuses_a_tensor_that_is_not_listed(void **state)
{
    (void)state;
    static const float zeros[4];
    struct directory_builder builder = {0};
    size_t length;
    put_config();
    directory_tensor(&builder, "lm_head.weight", "F32", 1, 2, zeros);
    directory_tensor(&builder, "model.norm.weight", "F32", 0, 2, zeros);
    uint8_t *bytes = directory_finish(&builder, &length);
    put("a.safetensors", bytes, length);
    directory_free(&builder);
    free(bytes);
    put_text("model.safetensors.index.json", MAP("\"lm_head.weight\":\"a.safetensors\""));
    must_refuse(STATUS_BAD_FILE, "names 1 tensors, but its files hold 2");
}

static void refuses_what_is_no_model_by_name(void **state)
{
    (void)state;
    struct model_file *file;
    struct reason reason;
    must_refuse(STATUS_NOT_FOUND, "config.json: cannot be opened");
    put_config();
    must_refuse(STATUS_NOT_FOUND, "has neither model.safetensors nor model.safetensors.index.json");
    put_text("model.safetensors", "x");
    must_refuse(STATUS_BAD_FILE, "model.safetensors: not a safetensors file: it has 1 bytes");
    put_text("generation_config.json", "");
    must_refuse(STATUS_BAD_FILE, "generation_config.json: the file is empty");
    char path[128];
    path_of("generation_config.json", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/nowhere/blob", path), 0); /* as of a download that broke off */
    must_refuse(STATUS_NOT_FOUND, "generation_config.json: cannot be opened");
    assert_int_equal(unlink(path), 0);
    put_text("config.json", "{}");
    path_of("model.safetensors", path);
    assert_int_equal(open_path(path, &file, &reason), STATUS_UNSUPPORTED);
    assert_non_null(strstr(reason.storage, "give the directory that holds it"));
    size_t length = (1 << 20) + 1;
    char *large = calloc(length, 1);
    put("config.json", large, length);
    free(large);
    must_refuse(STATUS_TOO_LARGE, "config.json: has 1048577 bytes; at most 1048576");
    assert_int_equal(open_path("/nowhere", &file, &reason), STATUS_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_directory_and_a_file_have_one_view, empty_folder),
        cmocka_unit_test_teardown(shards_are_found_by_the_index, empty_folder),
        cmocka_unit_test_teardown(refuses_an_index_that_is_wrong, empty_folder),
        cmocka_unit_test_teardown(refuses_what_passes_a_bound, empty_folder),
        cmocka_unit_test_teardown(refuses_a_tensor_that_is_not_listed, empty_folder),
        cmocka_unit_test_teardown(refuses_what_is_no_model_by_name, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
