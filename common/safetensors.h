/* Reader of one safetensors file: eight bytes with the length of a JSON header, the header, the
 * tensors. Invariants: (1) after safetensors_open every length, offset and size was checked against
 * the bytes that are there, so no lookup can leave the file; (2) no name occurs twice; (3) the
 * tensors fill the rest of the file without gap or overlap, as the format orders; (4) opening takes
 * memory in proportion to the header, never to a number in it. */
#ifndef TANDEM_COMMON_SAFETENSORS_H
#define TANDEM_COMMON_SAFETENSORS_H

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 16 << 20,
    SAFETENSORS_TENSORS_MAX = 65536,
    SAFETENSORS_NAME_BYTES_MAX = 255,
    SAFETENSORS_DIMENSIONS_MAX = 4,
};

/* Types that Tandem computes with; the others are known by name and size only. */
enum safetensors_type {
    SAFETENSORS_TYPE_F32 = 1,
    SAFETENSORS_TYPE_F16,
    SAFETENSORS_TYPE_BF16,
    SAFETENSORS_TYPE_OTHER,
};

struct safetensors_tensor {
    const char *name;      /* owned by the reader */
    const char *type_name; /* static */
    enum safetensors_type type;
    uint32_t dimensions;
    uint64_t extent[SAFETENSORS_DIMENSIONS_MAX]; /* extent[0] runs slowest; 1 beyond `dimensions` */
    uint64_t offset;                             /* from the start of the file */
    uint64_t bytes;
};

struct safetensors; /* opaque; immutable after opening, so any number of threads may read it */

/* Maps the file and checks it as a whole. The statuses of mapped_file_open(), STATUS_BAD_FILE,
 * STATUS_TOO_LARGE (a bound above) or STATUS_UNSUPPORTED (a type unknown by name); `why` says what
 * is wrong where. Close with safetensors_close(). */
MUST_USE enum status safetensors_open(const char *path, struct safetensors **out_file,
                                      struct text *why);

/* The same over memory, which the result borrows. */
MUST_USE enum status safetensors_open_memory(const void *bytes, size_t length,
                                             struct safetensors **out_file, struct text *why);

/* Accepts NULL. */
void safetensors_close(struct safetensors *file);

size_t safetensors_file_bytes(const struct safetensors *file);

/* Tensors in the order in which they lie in the file. */
uint32_t safetensors_tensor_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors *file,
                                                       uint32_t index);

/* The tensor's `bytes` bytes, borrowed from the file; of any alignment. */
const uint8_t *safetensors_tensor_bytes(const struct safetensors *file,
                                        const struct safetensors_tensor *tensor);

/* Tells the system that the pages of a tensor are not needed any more; reading them again still
 * works. */
void safetensors_tensor_drop(const struct safetensors *file,
                             const struct safetensors_tensor *tensor);

#endif
