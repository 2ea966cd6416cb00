/* A compute device behind one table of operations. Used by one thread at a time (the executor's).
 *
 * Operations are ordered: each sees what the ones before it wrote. They return nothing: a device
 * that fails says so at the next download(), which waits for everything before it. The CPU backend
 * has finished an operation when it returns. No operation allocates. A backend with whole steps
 * (kernels/step.h) has memory and matrices only: its operations from `embed` to `hash` are NULL. */
#ifndef TANDEM_KERNELS_BACKEND_H
#define TANDEM_KERNELS_BACKEND_H

#include "common/status.h"
#include "common/text.h"
#include "kernels/ops.h"

#include <stdint.h>

enum backend_kind { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum cpu_isa {
    CPU_ISA_AUTO,
    CPU_ISA_PLAIN,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AVX512_BF16,
    CPU_ISA_AMX,
};

/* A fault that a test plants in a device, at one step (1 is the first), all but the last ones once.
 */
enum backend_fault_kind {
    BACKEND_FAULT_NONE,
    BACKEND_FAULT_TRAP,         /* a kernel traps */
    BACKEND_FAULT_HANG,         /* a kernel never returns */
    BACKEND_FAULT_NAN,          /* the step's first row is NaN after the gather */
    BACKEND_FAULT_NEGATIVE_NAN, /* the same with all bits set */
    BACKEND_FAULT_LIBRARY,      /* the library of matrix products fails, from this step on */
    BACKEND_FAULT_OPEN,         /* the library cannot be opened; the step does not matter */
};

struct backend_fault {
    uint32_t kind; /* enum backend_fault_kind */
    uint64_t step;
};

struct backend_options {
    uint32_t kind;    /* enum backend_kind */
    uint32_t cpu_isa; /* enum cpu_isa; AUTO takes the widest that pays on the processor. All give
                         the same bits. */
    uint32_t threads; /* 0 = one per physical core that this process may use */
    /* Not 0: each thread but the caller's stays on a core of its own. On a machine with several
     * memory nodes all threads, the caller's too, stay on processors of their node in any case,
     * but for one that is late, which the caller gives its own processor for a while; what the
     * caller starts meanwhile inherits that, and closing takes it back. */
    uint32_t pin_threads;
    struct backend_fault fault; /* of a device alone; the CPU has none */
};

/* How matrices that share their input are used together. */
enum matrix_join_order {
    MATRIX_JOIN_PLAIN, /* one matrix on its own */
    MATRIX_JOIN_HEADS, /* q, k, v: heads of head_dim rows */
    MATRIX_JOIN_PAIRS, /* gate, up: row i of one goes with row i of the other */
};

struct step_operations; /* kernels/step.h */

struct backend {
    const struct backend_operations *operations;
    const struct step_operations *steps; /* or NULL: steps are composed out of the operations */
    uint32_t kind;                       /* enum backend_kind, never AUTO */
    uint32_t kv_order;                   /* enum kv_order that kv_write and attention expect */
    const char *name;                    /* for logs: "cpu-avx2" */
    uint32_t threads;                    /* that compute, the caller's included; 0 for a device */
};

struct backend_operations {
    /* Backend memory, zeroed, page-aligned, touched on use. STATUS_OUT_OF_MEMORY. Release takes the
     * same size; NULL is accepted. Discard zeroes whole pages inside the range and gives them back
     * to the system. */
    enum status (*memory_reserve)(struct backend *backend, uint64_t bytes,
                                  void **out_memory) MUST_USE;
    void (*memory_release)(struct backend *backend, void *memory, uint64_t bytes);
    void (*memory_discard)(struct backend *backend, void *memory, uint64_t bytes);

    /* Between host memory and backend memory. Both have copied when they return; download() also
     * waits for all operations before it and returns STATUS_DEVICE_LOST where one failed. */
    void (*upload)(struct backend *backend, void *memory, const void *host, uint64_t bytes);
    enum status (*download)(struct backend *backend, void *host, const void *memory,
                            uint64_t bytes) MUST_USE;

    /* Packs a tensor; the source is no longer needed afterwards. STATUS_OUT_OF_MEMORY, or
     * STATUS_UNSUPPORTED for a type that this backend has no kernel for. The caller frees. Free
     * accepts NULL. */
    enum status (*matrix_load)(struct backend *backend, const struct matrix_source *source,
                               struct matrix **out_matrix) MUST_USE;
    void (*matrix_free)(struct backend *backend, struct matrix *matrix);

    /* Tells once, after all were loaded, which matrices are multiplied with one input, so that a
     * backend may lay them out as one. They stay separate for the caller, and are freed one by one.
     * STATUS_OUT_OF_MEMORY; STATUS_UNSUPPORTED for a shape without a kernel. */
    enum status (*matrix_join)(struct backend *backend, struct matrix *const *parts, uint32_t count,
                               enum matrix_join_order order, uint32_t head_dim) MUST_USE;

    /* Sizes of memory that the caller provides. Prepared rows: up to `rows` of up to `columns`
     * columns. Attention: for steps of up to `rows` rows at up to `context` positions. */
    uint64_t (*prepared_bytes)(struct backend *backend, uint32_t rows, uint32_t columns);
    uint64_t (*attention_scratch_bytes)(struct backend *backend, uint32_t rows, uint32_t heads,
                                        uint32_t head_dim, uint32_t context);

    void (*embed)(struct backend *backend, const struct embed_args *args);
    void (*gather)(struct backend *backend, const struct gather_args *args);
    void (*rmsnorm)(struct backend *backend, const struct rmsnorm_args *args);
    void (*prepare)(struct backend *backend, const struct prepare_args *args);
    void (*matmul)(struct backend *backend, const struct matmul_args *args);
    void (*rope)(struct backend *backend, const struct rope_args *args);
    void (*kv_write)(struct backend *backend, const struct kv_write_args *args);
    void (*attention)(struct backend *backend, const struct attention_args *args);
    void (*add)(struct backend *backend, const struct add_args *args);
    void (*silu_mul)(struct backend *backend, const struct silu_mul_args *args);
    /* Several of the operations above in one pass over the rows; the bits are theirs. */
    void (*norm_prepare)(struct backend *backend, const struct norm_prepare_args *args);
    void (*silu_prepare)(struct backend *backend, const struct silu_prepare_args *args);
    void (*rope_write)(struct backend *backend, const struct rope_write_args *args);
    void (*sample)(struct backend *backend, const struct sample_args *args);
    void (*hash)(struct backend *backend, const struct hash_args *args);

    void (*close)(struct backend *backend);
};

/* Opens the backend that `options` ask for; AUTO takes CUDA where a device is found and the CPU
 * elsewhere, or where cuBLAS cannot be loaded, and logs why. STATUS_UNSUPPORTED (no CUDA device, no
 * cuBLAS, an instruction set that the processor lacks),
 * STATUS_OUT_OF_MEMORY or STATUS_SYSTEM, with the reason in `why`. Close with backend_close(). */
MUST_USE enum status backend_open(const struct backend_options *options,
                                  struct backend **out_backend, struct text *why);

/* Accepts NULL. All matrices and memory must have been given back. */
void backend_close(struct backend *backend);

/* Identity of the arithmetic for the attach protocol: "cpu-2-f16". Two workers with the same text
 * and the same model give the same bits. `kv_type` is an enum kv_type; the text lives as long as
 * the backend. */
const char *backend_arithmetic(const struct backend *backend, uint32_t kv_type);

#endif
