/* The residual, the norm and the rounding of a row while it lies in the first cache, with one
 * barrier instead of three. Each step is the one of the operation of its own, so the bits are too.
 */
#include "kernels/cpu/device.h"
#include "kernels/cpu/row_steps.h"

struct norm_prepare_job {
    const struct norm_prepare_args *args;
    struct prepare_args prepare;
    const struct cpu_kernels *kernels;
};

static void norm_prepare_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct norm_prepare_job *job = context;
    const struct norm_prepare_args *args = job->args;
    for (uint32_t row = begin; row < end; row++) {
        uint64_t offset = (uint64_t)row * args->columns;
        float *residual = args->residual + offset;
        float *output =
            args->output + (uint64_t)values_row(args->forms, begin, row) * args->columns;
        if (args->addend != NULL)
            fetch_row(args->addend + offset, args->columns);
        prepare_fetch(job->kernels, &job->prepare, row);
        for (uint32_t k = 0; args->addend != NULL && k < args->columns; k++)
            residual[k] += args->addend[offset + k];
        job->kernels->rmsnorm_row(residual, args->weight, args->columns, args->epsilon, output);
        prepare_row(job->kernels, &job->prepare, row, output);
    }
}

void cpu_norm_prepare(struct backend *backend, const struct norm_prepare_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct norm_prepare_job job = {
        args,
        {NULL, args->rows, args->columns, args->prepared, args->forms},
        cpu->kernels,
    };
    prepare_check(&job.prepare);
    pool_run(cpu->pool, norm_prepare_rows, &job, args->rows,
             pool_row_grain(cpu->pool, args->rows, args->columns));
}
