#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* The first reason is kept: it is about the name that should have been found. */
static void *load_first(const char *const *names, struct text *why)
{
    void *handle = NULL;
    for (const char *const *name = names; handle == NULL && *name != NULL; name++) {
        handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL && name == names)
            text_set(why,
                     "cuBLAS cannot be loaded: %s; install the CUDA toolkit's libraries, or "
                     "give --backend cpu",
                     dlerror());
    }
    return handle;
}

enum status library_load_named(const char *const *names, struct library *out_library,
                               struct text *why)
{
    static const struct {
        const char *name;
        size_t place;
    } entries[] = {{"cublasCreate_v2", offsetof(struct library, create)},
                   {"cublasDestroy_v2", offsetof(struct library, destroy)},
                   {"cublasSetStream_v2", offsetof(struct library, set_stream)},
                   {"cublasSetWorkspace_v2", offsetof(struct library, set_workspace)},
                   {"cublasSetMathMode", offsetof(struct library, set_math_mode)},
                   {"cublasGemmEx", offsetof(struct library, gemm)},
                   {"cublasGetCudartVersion", offsetof(struct library, version)}};
    static_assert(sizeof entries / sizeof *entries * sizeof(void *) == sizeof(struct library),
                  "every entry point has its name");
    void *handle = load_first(names, why);
    if (handle == NULL)
        return STATUS_NOT_FOUND;
    struct library library = {};
    for (const auto &entry : entries) {
        void *found = dlsym(handle, entry.name);
        if (found == NULL) {
            text_set(why, "cuBLAS has no %s: install the CUDA toolkit's libraries of version %d",
                     entry.name, CUBLAS_VER_MAJOR);
            (void)dlclose(handle);
            return STATUS_NOT_FOUND;
        }
        memcpy((char *)&library + entry.place, &found, sizeof found);
    }
    *out_library = library;
    return STATUS_OK;
}

enum status library_load(struct library *out_library, struct text *why)
{
    static const char *const names[] = {LIBRARY_NAME, "libcublas.so", NULL};
    return library_load_named(names, out_library, why);
}
