#include "worker/model.h"

#include "support/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct backend *backend;
static char folder[] = "/tmp/model_test.XXXXXX";
static char path[64];

static int open_all(void **state)
{
    (void)state;
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    return backend_open(&options, &backend, NULL) == STATUS_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    backend_close(backend);
    unlink(path);
    return rmdir(folder);
}

static void write_file(const uint8_t *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Whether the model file is mapped into this process. */
static bool file_mapped(void)
{
    char line[512];
    bool mapped = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        mapped = mapped || strstr(line, path) != NULL;
    fclose(maps);
    return mapped;
}

static void opens_a_file_and_keeps_nothing_of_it(void **state)
{
    (void)state;
    size_t length;
    uint8_t *bytes = tiny_model_file(&TINY_MODEL, &length);
    struct model model = {0};
    struct reason reason;
    write_file(bytes, length);
    assert_int_equal(model_open(path, backend, NULL, NULL, &model, reason_init(&reason)),
                     STATUS_OK);
    assert_false(file_mapped());
    assert_int_equal(model.shape.layers, 2);
    assert_int_equal(model.weights.layers, 2);
    assert_int_equal(model.weights.embedding->rows, 320);
    assert_true(model.weights.bytes >= 320 * 64 * 4);
    model_close(&model);
    model_close(&model); /* closed is zeroed */
    free(bytes);
}

static void a_cut_file_is_refused_and_nothing_is_left(void **state)
{
    (void)state;
    size_t length;
    uint8_t *bytes = tiny_model_file(&TINY_MODEL, &length);
    struct model model = {0};
    struct reason reason;
    write_file(bytes, length - 100);
    assert_int_equal(model_open(path, backend, NULL, NULL, &model, reason_init(&reason)),
                     STATUS_BAD_FILE);
    assert_non_null(strstr(reason.storage, "tensor \"output_norm.weight\" needs the file to have"));
    assert_false(file_mapped());
    assert_null(model.weights.backend);
    free(bytes);
}

static void a_model_of_another_architecture_is_refused(void **state)
{
    (void)state;
    struct gguf_builder builder;
    struct model model = {0};
    struct reason reason;
    size_t length;
    builder_init(&builder);
    builder_string(&builder, "general.architecture", "gpt2");
    uint8_t *bytes = builder_finish(&builder, &length);
    write_file(bytes, length);
    assert_int_equal(model_open(path, backend, NULL, NULL, &model, reason_init(&reason)),
                     STATUS_UNSUPPORTED);
    assert_string_equal(reason.storage,
                        "the architecture is \"gpt2\"; only \"llama\" is supported");
    builder_free(&builder);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_a_file_and_keeps_nothing_of_it),
        cmocka_unit_test(a_cut_file_is_refused_and_nothing_is_left),
        cmocka_unit_test(a_model_of_another_architecture_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
