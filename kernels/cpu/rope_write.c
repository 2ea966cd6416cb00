/* Rotation of a row's queries and keys, then its key and value into the pool: one barrier instead
 * of three. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/row_steps.h"

#include "common/check.h"

struct rope_write_job {
    const struct rope_write_args *args;
    const struct cpu_kernels *kernels;
};

static void rope_write_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct rope_write_job *job = context;
    for (uint32_t row = begin; row < end; row++) {
        kv_write_fetch(&job->args->write, row); /* arrives during the rotation */
        rope_row(&job->args->queries, row);
        rope_row(&job->args->keys, row);
        kv_write_row(job->kernels, &job->args->write, row);
    }
}

void cpu_rope_write(struct backend *backend, const struct rope_write_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct rope_write_job job = {args, cpu->kernels};
    CHECK(args->write.keys == args->keys.values && args->queries.rows == args->write.rows &&
          args->keys.rows == args->write.rows);
    kv_write_check(&args->write);
    pool_run(cpu->pool, rope_write_rows, &job, args->write.rows,
             pool_row_grain(cpu->pool, args->write.rows,
                            (args->queries.heads + 2 * args->keys.heads) * args->keys.head_dim));
}
