/* The CPU backend: what its operations share. */
#ifndef TANDEM_KERNELS_CPU_DEVICE_H
#define TANDEM_KERNELS_CPU_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/placement.h"
#include "kernels/cpu/pool.h"

struct cpu_backend {
    struct backend base; /* first: a struct backend * is one of these */
    const struct cpu_kernels *kernels;
    struct pool *pool; /* owned */
    struct placement placement;
    struct memory_runs weights[MEMORY_NODES_MAX]; /* owned [place] where its panels lie */
    cpu_set_t callers; /* processors of the caller's thread before it was kept on its node */
};

static inline struct cpu_backend *cpu_backend_of(struct backend *backend)
{
    return (struct cpu_backend *)backend;
}

/* STATUS_UNSUPPORTED, STATUS_OUT_OF_MEMORY or STATUS_SYSTEM with the reason. */
MUST_USE enum status cpu_open(const struct backend_options *options, struct backend **out_backend,
                              struct text *why);

/* Operations, one per file of the same stem; contracts in ops.h. */
MUST_USE enum status cpu_matrix_load(struct backend *backend, const struct matrix_source *source,
                                     struct matrix **out_matrix);
void cpu_matrix_free(struct backend *backend, struct matrix *matrix);

/* Of a product of few rows, whose matrices have `units` units together (matrix.h), the first that
 * falls to a thread; thread = all threads: the end. */
uint32_t cpu_matmul_first_unit(const struct cpu_backend *cpu, uint32_t units, uint32_t thread);

uint64_t cpu_prepared_bytes(struct backend *backend, uint32_t rows, uint32_t columns);
uint64_t cpu_attention_scratch_bytes(struct backend *backend, uint32_t rows, uint32_t heads,
                                     uint32_t head_dim, uint32_t context);
void cpu_embed(struct backend *backend, const struct embed_args *args);
void cpu_gather(struct backend *backend, const struct gather_args *args);
void cpu_rmsnorm(struct backend *backend, const struct rmsnorm_args *args);
void cpu_prepare(struct backend *backend, const struct prepare_args *args);
void cpu_matmul(struct backend *backend, const struct matmul_args *args);
void cpu_rope(struct backend *backend, const struct rope_args *args);
void cpu_kv_write(struct backend *backend, const struct kv_write_args *args);
void cpu_attention(struct backend *backend, const struct attention_args *args);
void cpu_add(struct backend *backend, const struct add_args *args);
void cpu_silu_mul(struct backend *backend, const struct silu_mul_args *args);
void cpu_norm_prepare(struct backend *backend, const struct norm_prepare_args *args);
void cpu_silu_prepare(struct backend *backend, const struct silu_prepare_args *args);
void cpu_rope_write(struct backend *backend, const struct rope_write_args *args);
void cpu_sample(struct backend *backend, const struct sample_args *args);
void cpu_hash(struct backend *backend, const struct hash_args *args);

#endif
