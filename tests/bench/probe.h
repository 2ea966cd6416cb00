/* What this machine can do at most, measured beside a benchmark: its own figures are printed as
 * shares of these. They drift on a shared machine, so probe before and after, or in between. */
#ifndef TANDEM_BENCH_PROBE_H
#define TANDEM_BENCH_PROBE_H

#include "kernels/cpu/pool.h"

struct probe {
    double read_bytes_per_s;   /* all threads, a buffer of 256 MiB */
    double again_bytes_per_s;  /* all threads, a buffer as large as what is read again and again: a
                                  third cache of hundreds of MiB holds some or all of it */
    double integer_macs_per_s; /* 16-bit products added into 32 bits, the widest instruction */
    double float_macs_per_s;   /* fused multiply-adds of fp32, likewise */
    double bf16_macs_per_s; /* products of bf16 added into fp32; those of fp32 where the processor
                               has no instruction for them or a slower one */
};

/* Runs on all threads of the pool for about `seconds` in all. Takes and frees 256 MiB, then
 * `again_bytes`. Ends the process where memory is out. */
struct probe probe_machine(struct pool *pool, uint64_t again_bytes, double seconds);

/* One line: "probe: read 28.1 GB/s, again 29.0 GB/s, integer 101.0 GMAC/s, fp32 60.2 GMAC/s, bf16
 * 60.2 GMAC/s, 2 threads". */
void probe_print(const struct probe *probe, const struct pool *pool);

#endif
