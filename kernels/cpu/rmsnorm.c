#include "kernels/cpu/device.h"
#include "kernels/cpu/plain.h"

#include <math.h>

/* The order of the sum is the arithmetic's: 16 lanes by k mod 16, then a tree over (i, i + 8), 4,
 * 2, 1. */
enum { LANES = 16 };

void rmsnorm_row_plain(const float *input, const float *weight, uint32_t columns, float epsilon,
                       float *output)
{
    float lanes[LANES] = {0};
    for (uint32_t k = 0; k < columns; k++)
        lanes[k % LANES] = fmaf(input[k], input[k], lanes[k % LANES]);
    for (uint32_t distance = LANES / 2; distance >= 1; distance /= 2) {
        for (uint32_t i = 0; i < distance; i++)
            lanes[i] += lanes[i + distance];
    }
    float inverse = 1.0f / sqrtf(lanes[0] / (float)columns + epsilon);
    for (uint32_t k = 0; k < columns; k++)
        output[k] = input[k] * inverse * weight[k];
}

struct rmsnorm_job {
    const struct rmsnorm_args *args;
    const struct cpu_kernels *kernels;
};

static void rmsnorm_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct rmsnorm_job *job = context;
    const struct rmsnorm_args *args = job->args;
    for (uint32_t row = begin; row < end; row++) {
        uint64_t offset = (uint64_t)row * args->columns;
        job->kernels->rmsnorm_row(args->input + offset, args->weight, args->columns, args->epsilon,
                                  args->output + offset);
    }
}

void cpu_rmsnorm(struct backend *backend, const struct rmsnorm_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct rmsnorm_job job = {args, cpu->kernels};
    pool_run(cpu->pool, rmsnorm_rows, &job, args->rows,
             pool_row_grain(cpu->pool, args->rows, args->columns));
}
