/* Any bytes as config.json and a file of tensors: no crash, no read beyond the end, no memory in
 * proportion to a number in the files; what is accepted tiles the file and can be walked, and what
 * is accepted as a model can be loaded.
 * Input: two bytes with the length of the configuration, the configuration, the tensors. The same
 * configuration stands for generation_config.json. */
#include "common/model_file.h"
#include "common/model_shape.h"
#include "common/safetensors.h"
#include "worker/weights.h"

#include "common/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { LENGTH_BYTES = 2, LOADED_BYTES_MAX = 1 << 20 };

static bool is_refusal(enum status status)
{
    return status == STATUS_BAD_FILE || status == STATUS_UNSUPPORTED || status == STATUS_TOO_LARGE;
}

/* Every byte behind the header belongs to one tensor. */
static uint64_t walk(const uint8_t *bytes, size_t length)
{
    struct safetensors *file = NULL;
    struct reason reason;
    uint64_t sum = 0, end = 0;
    enum status status = safetensors_open_memory(bytes, length, &file, reason_init(&reason));
    CHECK((status == STATUS_OK) == (file != NULL));
    CHECK(status == STATUS_OK || (is_refusal(status) && reason.text.length > 0));
    if (status != STATUS_OK)
        return 0;
    for (uint32_t i = 0; i < safetensors_tensor_count(file); i++) {
        const struct safetensors_tensor *tensor = safetensors_tensor_at(file, i);
        const uint8_t *content = safetensors_tensor_bytes(file, tensor);
        CHECK(tensor->name[0] != '\0' && tensor->bytes > 0 && tensor->type_name != NULL);
        CHECK(i == 0 || tensor->offset == end);
        end = tensor->offset + tensor->bytes;
        for (uint64_t j = 0; j < tensor->bytes; j++)
            sum += content[j];
    }
    CHECK(safetensors_tensor_count(file) == 0 || end == length);
    safetensors_close(file);
    return sum;
}

static void load(const struct model_file *file, size_t length)
{
    static struct backend *backend;
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    struct model_shape shape;
    struct weights weights;
    struct reason reason;
    enum status status = model_shape_read(file, &shape, reason_init(&reason));
    CHECK(status == STATUS_OK || (is_refusal(status) && reason.text.length > 0));
    if (status != STATUS_OK || length > LOADED_BYTES_MAX)
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
    if (length < LENGTH_BYTES)
        return 0;
    uint16_t announced;
    memcpy(&announced, bytes, sizeof announced);
    bytes += LENGTH_BYTES;
    length -= LENGTH_BYTES;
    size_t config_bytes = announced < length ? announced : length;
    const struct model_file_parts parts = {
        .config = {bytes, config_bytes, bytes, config_bytes},
        .tensors = bytes + config_bytes,
        .tensors_bytes = length - config_bytes,
    };
    struct model_file *file = NULL;
    struct reason reason;
    sink += walk(parts.tensors, parts.tensors_bytes);
    enum status status = model_file_open_parts(&parts, &file, reason_init(&reason));
    CHECK((status == STATUS_OK) == (file != NULL));
    CHECK(status == STATUS_OK || (is_refusal(status) && reason.text.length > 0));
    if (status == STATUS_OK)
        load(file, parts.tensors_bytes);
    model_file_close(file);
    return 0;
}
