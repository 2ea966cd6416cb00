/* SiLU, its product and the rounding of a row while it lies in the first cache. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/prepared.h"

#include "common/check.h"

struct silu_prepare_job {
    const struct silu_prepare_args *args;
    const struct cpu_kernels *kernels;
};

static void silu_prepare_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct silu_prepare_job *job = context;
    const struct silu_mul_args *silu = &job->args->silu;
    for (uint32_t row = begin; row < end; row++) {
        uint64_t offset = (uint64_t)row * silu->columns;
        job->kernels->silu_mul_row(silu->gate + offset, silu->up + offset, silu->columns,
                                   silu->output + offset);
        if (job->args->prepared != NULL) {
            struct prepared_row record = prepared_row_at(job->args->prepared, silu->columns, row);
            job->kernels->prepare_row(silu->output + offset, silu->columns, &record);
        }
    }
}

void cpu_silu_prepare(struct backend *backend, const struct silu_prepare_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct silu_prepare_job job = {args, cpu->kernels};
    CHECK(args->prepared == NULL || prepared_row_bytes(args->silu.columns) != 0);
    pool_run(cpu->pool, silu_prepare_rows, &job, args->silu.rows,
             pool_row_grain(args->silu.columns));
}
