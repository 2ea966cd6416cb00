#include "kernels/cpu/device.h"
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/plain.h"

void silu_mul_row_plain(const float *gate, const float *up, uint32_t columns, float *output)
{
    for (uint32_t k = 0; k < columns; k++) {
        float sigmoid_inverse = 1.0f + exp_plain(-gate[k]);
        output[k] = gate[k] / sigmoid_inverse * up[k];
    }
}

struct silu_mul_job {
    const struct silu_mul_args *args;
    const struct cpu_kernels *kernels;
};

static void silu_mul_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct silu_mul_job *job = context;
    const struct silu_mul_args *args = job->args;
    for (uint32_t row = begin; row < end; row++) {
        uint64_t offset = (uint64_t)row * args->columns;
        job->kernels->silu_mul_row(args->gate + offset, args->up + offset, args->columns,
                                   args->output + offset);
    }
}

void cpu_silu_mul(struct backend *backend, const struct silu_mul_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct silu_mul_job job = {args, cpu->kernels};
    pool_run(cpu->pool, silu_mul_rows, &job, args->rows,
             pool_row_grain(cpu->pool, args->rows, args->columns));
}
