#include "kernels/cpu/device.h"
#include "kernels/cpu/row_steps.h"

/* Products are rounded before they are added, as transformers does. */
static void rotate(float *head, const float *cosines, const float *sines, uint32_t half)
{
    for (uint32_t j = 0; j < half; j++) {
        float low = head[j], high = head[half + j];
        head[j] = low * cosines[j] - high * sines[j];
        head[half + j] = high * cosines[j] + low * sines[j];
    }
}

void rope_row(const struct rope_args *args, uint32_t row)
{
    uint32_t half = args->rotary_dims / 2;
    const float *cosines = args->table + (uint64_t)args->positions[row] * args->rotary_dims;
    float *heads = args->values + (uint64_t)row * args->heads * args->head_dim;
    for (uint32_t head = 0; head < args->heads; head++)
        rotate(heads + (uint64_t)head * args->head_dim, cosines, cosines + half, half);
}

static void rope_rows(const void *context, uint32_t begin, uint32_t end)
{
    for (uint32_t row = begin; row < end; row++)
        rope_row(context, row);
}

void cpu_rope(struct backend *backend, const struct rope_args *args)
{
    pool_run(
        cpu_backend_of(backend)->pool, rope_rows, args, args->rows,
        pool_row_grain(cpu_backend_of(backend)->pool, args->rows, args->heads * args->head_dim));
}
