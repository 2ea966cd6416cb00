/* SiLU, its product and the rounding of a row while it lies in the first cache. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/row_steps.h"

struct silu_prepare_job {
    const struct silu_mul_args *silu;
    struct prepare_args prepare;
    const struct cpu_kernels *kernels;
};

static void silu_prepare_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct silu_prepare_job *job = context;
    const struct silu_mul_args *silu = job->silu;
    for (uint32_t row = begin; row < end; row++) {
        uint64_t offset = (uint64_t)row * silu->columns;
        float *output =
            silu->output + (uint64_t)values_row(job->prepare.forms, begin, row) * silu->columns;
        fetch_row(silu->gate + offset, silu->columns);
        fetch_row(silu->up + offset, silu->columns);
        prepare_fetch(job->kernels, &job->prepare, row);
        job->kernels->silu_mul_row(silu->gate + offset, silu->up + offset, silu->columns, output);
        prepare_row(job->kernels, &job->prepare, row, output);
    }
}

void cpu_silu_prepare(struct backend *backend, const struct silu_prepare_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    const struct silu_mul_args *silu = &args->silu;
    struct silu_prepare_job job = {
        silu,
        {NULL, silu->rows, silu->columns, args->prepared, args->forms},
        cpu->kernels,
    };
    prepare_check(&job.prepare);
    pool_run(cpu->pool, silu_prepare_rows, &job, silu->rows,
             pool_row_grain(cpu->pool, silu->rows, silu->columns));
}
