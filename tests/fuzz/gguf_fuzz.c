/* Any bytes as a model file: no crash, no read beyond the end, no memory in proportion to a number
 * in the file; what is accepted can be walked, and what is accepted as a model can be loaded. */
#include "common/model_file.h"
#include "common/model_shape.h"
#include "worker/weights.h"

#include "common/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { LOADED_BYTES_MAX = 1 << 20 };

static uint64_t walk_arrays(const struct gguf *gguf, const char *key)
{
    struct gguf_array array;
    struct gguf_string string;
    int64_t integer;
    double number;
    uint64_t sum = 0;
    if (gguf_find_array(gguf, key, GGUF_VALUE_STRING, &array, NULL) == STATUS_OK)
        while (gguf_next_string(&array, &string))
            sum += string.length == 0 ? 1 : (uint8_t)string.bytes[string.length - 1];
    if (gguf_find_array(gguf, key, GGUF_VALUE_I32, &array, NULL) == STATUS_OK)
        while (gguf_next_integer(&array, &integer))
            sum += (uint64_t)integer;
    if (gguf_find_array(gguf, key, GGUF_VALUE_F32, &array, NULL) == STATUS_OK)
        while (gguf_next_float(&array, &number))
            sum += number > 0;
    return sum;
}

static uint64_t walk(const struct gguf *gguf)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gguf_key_count(gguf); i++) {
        const struct gguf_entry *entry = gguf_entry_at(gguf, i);
        CHECK(entry->key.length > 0 && entry->key.length <= GGUF_KEY_BYTES_MAX);
        for (size_t j = 0; j < entry->value.length; j++)
            sum += (uint8_t)entry->value.bytes[j];
    }
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const uint8_t *content = gguf_tensor_bytes(gguf, tensor);
        CHECK(tensor->offset + tensor->bytes <= gguf_file_bytes(gguf));
        CHECK(gguf_find_tensor(gguf, tensor->name) == tensor);
        for (uint64_t j = 0; j < tensor->bytes; j++)
            sum += content[j];
    }
    return sum + walk_arrays(gguf, "tokenizer.ggml.tokens") +
           walk_arrays(gguf, "tokenizer.ggml.token_type") + walk_arrays(gguf, "floats");
}

static void load(const struct model_file *file)
{
    static struct backend *backend;
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    struct model_shape shape;
    struct weights weights;
    struct reason reason;
    enum status status = model_shape_read(file, &shape, reason_init(&reason));
    CHECK(status == STATUS_OK || reason.text.length > 0);
    if (status != STATUS_OK || gguf_file_bytes(model_file_gguf(file)) > LOADED_BYTES_MAX)
        return;
    if (backend == NULL)
        CHECK(backend_open(&options, &backend, NULL) == STATUS_OK);
    const struct weights_source source = {.file = file, .shape = &shape};
    if (weights_load(&source, backend, &weights, reason_init(&reason)) == STATUS_OK)
        weights_free(&weights);
    else
        CHECK(reason.text.length > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static volatile uint64_t sink; /* keeps the reads */
    struct model_file *file = NULL;
    struct reason reason;
    enum status status = model_file_open_memory(bytes, length, &file, reason_init(&reason));
    CHECK(status == STATUS_OK || status == STATUS_BAD_FILE || status == STATUS_UNSUPPORTED);
    CHECK((status == STATUS_OK) == (file != NULL));
    CHECK(status == STATUS_OK || reason.text.length > 0);
    if (status == STATUS_OK) {
        sink += walk(model_file_gguf(file));
        load(file);
    }
    model_file_close(file);
    return 0;
}
