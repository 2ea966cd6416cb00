#include "kernels/backend.h"

#include "common/check.h"
#include "kernels/cpu/device.h"

#include <stddef.h>

enum status backend_open(const struct backend_options *options, struct backend **out_backend,
                         struct text *why)
{
    CHECK(options->kind == BACKEND_AUTO || options->kind == BACKEND_CPU);
    return cpu_open(options, out_backend, why);
}

void backend_close(struct backend *backend)
{
    if (backend != NULL)
        backend->operations->close(backend);
}

/* The version of the CPU arithmetic: docs/KERNELS.md. It changes with every change of a bit. */
const char *backend_arithmetic(const struct backend *backend, uint32_t kv_type)
{
    CHECK(backend->kind == BACKEND_CPU);
    CHECK(kv_type == KV_TYPE_F16 || kv_type == KV_TYPE_F32);
    return kv_type == KV_TYPE_F16 ? "cpu-1-f16" : "cpu-1-f32";
}
