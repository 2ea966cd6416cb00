#include "kernels/backend.h"

#include "common/check.h"
#include "common/log.h"
#include "kernels/cpu/device.h"
#ifdef TANDEM_WITH_CUDA
#include "kernels/cuda/open.h"
#endif

#include <stddef.h>

/* Where the build has no CUDA, no device is found either. */
static enum status open_cuda(const struct backend_options *options, struct backend **out_backend,
                             struct text *why)
{
#ifdef TANDEM_WITH_CUDA
    return cuda_open(options, out_backend, why);
#else
    (void)options;
    (void)out_backend;
    text_set(why, "this build has no CUDA backend");
    return STATUS_NOT_FOUND;
#endif
}

static const char *device_arithmetic(const struct backend *backend)
{
#ifdef TANDEM_WITH_CUDA
    return cuda_arithmetic(backend);
#else
    return backend->name;
#endif
}

enum status backend_open(const struct backend_options *options, struct backend **out_backend,
                         struct text *why)
{
    CHECK(options->kind <= BACKEND_CUDA);
    if (options->kind != BACKEND_CPU) {
        struct reason device;
        enum status status = open_cuda(options, out_backend, reason_init(&device));
        if (status != STATUS_NOT_FOUND || options->kind == BACKEND_CUDA) {
            if (status != STATUS_OK)
                text_set(why, "%s", device.storage);
            return status == STATUS_NOT_FOUND ? STATUS_UNSUPPORTED : status;
        }
        log_warn("device_left_out", "effect=\"the CPU computes\" why=\"%s\"", device.storage);
    }
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
    if (backend->kind == BACKEND_CUDA)
        return device_arithmetic(backend);
    CHECK(kv_type == KV_TYPE_F16 || kv_type == KV_TYPE_F32);
    return kv_type == KV_TYPE_F16 ? "cpu-2-f16" : "cpu-2-f32";
}
