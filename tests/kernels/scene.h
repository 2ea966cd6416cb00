/* A paged pool with sequences in it, for tests of kv_write and attention. Keys and values are a
 * function of (slot, layer, position, head, dim) alone, so the same logical content can be laid out
 * in many ways. Everything that no position owns is NaN. */
#ifndef TANDEM_TESTS_KERNELS_SCENE_H
#define TANDEM_TESTS_KERNELS_SCENE_H

#include "kernels/comparison.h"
#include "kernels/subjects.h"

#include <stdint.h>

struct scene_options {
    uint32_t heads, kv_heads, head_dim;
    uint32_t block_tokens, type; /* enum kv_type */
    uint32_t layers, slots, context;
    uint64_t shuffle;     /* seed of the permutation of physical blocks; 0 = in order */
    uint64_t pool_blocks; /* 0 = as many as needed; more are spread over the whole pool */
    float amplitude;      /* of keys and queries; 0 = 1 */
};

struct scene {
    struct scene_options options;
    struct backend *backend;
    struct kv_view kv;
    uint64_t pool_bytes;
    int32_t *table;       /* owned, host copy */
    uint32_t *row_errors; /* backend memory of SCENE_ROWS_MAX rows */
};

struct scene_row {
    uint32_t slot, position;
};

enum { SCENE_ROWS_MAX = 2048 };

/* Reserves the pool, poisons it (up to 64 MiB of it) and maps every block of every slot. */
void scene_open(struct scene *scene, struct backend *backend, const struct scene_options *options);
void scene_close(struct scene *scene);

/* Writes K and V of positions first..first+count-1 in one call. */
void scene_write(struct scene *scene, uint32_t layer, uint32_t slot, uint32_t first,
                 uint32_t count);

/* Attention of `count` rows in one call; output [row][heads][head_dim] in host memory. `in_place`:
 * output == queries. */
void scene_attend(struct scene *scene, uint32_t layer, const struct scene_row *rows, uint32_t count,
                  bool in_place, float *output);

/* The same row in double precision, from the logical content. */
void scene_expect(const struct scene_options *options, uint32_t layer, struct scene_row row,
                  struct expectation *expected);

/* Logical content, as fp32 before it is rounded to the pool's type. */
float scene_key(const struct scene_options *options, uint32_t layer, struct scene_row row,
                uint32_t kv_head, uint32_t dim);
float scene_value(const struct scene_options *options, uint32_t layer, struct scene_row row,
                  uint32_t kv_head, uint32_t dim);

#endif
