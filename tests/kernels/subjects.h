/* The backends that every kernel test runs on: each instruction set that this machine has, with 1
 * to 4 threads. A backend for another device joins this table and inherits all cases. Subjects of
 * one `family` promise equal bits. */
#ifndef TANDEM_TESTS_KERNELS_SUBJECTS_H
#define TANDEM_TESTS_KERNELS_SUBJECTS_H

#include "kernels/backend.h"

#include <stdbool.h>
#include <stddef.h>

struct subject {
    const char *name;
    const char *family;
    struct backend_options options;
};

extern const struct subject subjects[];
extern const size_t subject_count;

/* Opened backend, or NULL where this machine lacks the instruction set. */
struct backend *subject_open(const struct subject *subject);

/* Backend memory; the tests free it with the backend's process. */
void *subject_memory(struct backend *backend, uint64_t bytes);

/* Backend memory with a copy of host bytes, and back. */
void *subject_upload(struct backend *backend, const void *host, uint64_t bytes);
void subject_download(struct backend *backend, void *host, const void *memory, uint64_t bytes);

/* Deterministic inputs: uniform in [-1, 1), every 37th value 20 times as large. */
void fill_values(float *values, size_t count, uint64_t seed);

#endif
