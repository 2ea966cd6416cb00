#include "kernels/cpu/device.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/row_steps.h"

#include "common/check.h"
#include "common/float16.h"

enum { LINE_BYTES = 64 };

bool kv_write_row_plain(const struct kv_row_share *share)
{
    bool finite = true;
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        uint64_t element = (uint64_t)dim * share->stride;
        float value = share->input[dim];
        if (share->type == KV_TYPE_F16) {
            uint16_t half = fp16_from_float(value);
            ((uint16_t *)share->output)[element] = half;
            finite = finite && (half & 0x7c00u) != 0x7c00u;
        } else {
            ((float *)share->output)[element] = value;
            finite = finite && fabsf(value) <= FINITE_MAX;
        }
    }
    return finite;
}

struct kv_write_job {
    const struct kv_write_args *args;
    const struct cpu_kernels *kernels;
};

static uint8_t *block_of(const struct kv_write_args *args, uint32_t row)
{
    const struct kv_geometry *g = &args->kv.geometry;
    uint32_t logical = kv_logical_block(g, args->places.positions[row]);
    int32_t block = args->kv.table[kv_table_index(g, args->kv.logical_blocks,
                                                  args->places.slots[row], args->layer, logical)];
    CHECK(block >= 0);
    return (uint8_t *)args->kv.pool + kv_block_offset(g, (uint32_t)block);
}

/* The key of a row touches most lines of its block's K. Rows of a chunk share them. They are asked
 * for to be written (prefetchw; processors without it take it as a no-op): others have read them,
 * and stores would wait for each of them in turn. */
__attribute__((target("prfchw"))) void kv_write_fetch(const struct kv_write_args *args,
                                                      uint32_t row)
{
    const uint8_t *block = block_of(args, row);
    if (row > 0 && block == block_of(args, row - 1))
        return;
    for (uint64_t at = 0; at < kv_v_offset(&args->kv.geometry); at += LINE_BYTES)
        __builtin_prefetch(block + at, 1);
}

/* Writes K and V of one row; false where a value does not fit the pool's type. */
static bool write_row(const struct cpu_kernels *kernels, const struct kv_write_args *args,
                      uint32_t row)
{
    const struct kv_geometry *g = &args->kv.geometry;
    uint32_t token = kv_token_in_block(g, args->places.positions[row]);
    uint8_t *block = block_of(args, row);
    bool finite = true;
    for (uint32_t head = 0; head < g->kv_heads; head++) {
        uint64_t input = (uint64_t)row * kv_dim(g) + head * g->head_dim;
        struct kv_row_share share = {.head_dim = g->head_dim, .type = g->type};
        uint32_t element_bytes = kv_element_bytes(g);
        share.input = args->keys + input;
        share.stride = kv_k_element(g, token, 1) - kv_k_element(g, token, 0);
        share.output = block + kv_k_head_offset(g, 0, head) +
                       (uint64_t)kv_k_element(g, token, 0) * element_bytes;
        finite = kernels->kv_write_row(&share) && finite;
        share.input = args->values + input;
        share.stride = 1;
        share.output = block + kv_v_head_offset(g, 0, head) +
                       (uint64_t)kv_v_element(g, token, 0) * element_bytes;
        finite = kernels->kv_write_row(&share) && finite;
    }
    return finite;
}

void kv_write_row(const struct cpu_kernels *kernels, const struct kv_write_args *args, uint32_t row)
{
    if (!write_row(kernels, args, row))
        args->row_errors[row] |= ROW_ERROR_KV_RANGE;
}

static void kv_write_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct kv_write_job *job = context;
    for (uint32_t row = begin; row < end; row++)
        kv_write_row(job->kernels, job->args, row);
}

void kv_write_check(const struct kv_write_args *args)
{
    CHECK(args->kv.geometry.order == KV_ORDER_CPU);
    CHECK(args->kv.geometry.type == KV_TYPE_F16 || args->kv.geometry.type == KV_TYPE_F32);
}

void cpu_kv_write(struct backend *backend, const struct kv_write_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct kv_write_job job = {args, cpu->kernels};
    kv_write_check(args);
    pool_run(cpu->pool, kv_write_rows, &job, args->rows,
             pool_row_grain(cpu->pool, args->rows, 2 * kv_dim(&args->kv.geometry)));
}
