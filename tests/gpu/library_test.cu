/* How cuBLAS is loaded (kernels/cuda/library.h): by the first name that works, with every entry
 * point, or with the reason; and not before it is asked for. Needs the toolkit, but no device. */
#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

namespace
{

int failures;

void expect(bool good, const char *what, const char *detail)
{
    if (good)
        return;
    printf("FAIL %s: %s\n", what, detail);
    failures++;
}

bool is_mapped()
{
    return dlopen(LIBRARY_NAME, RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

void refused(const char *const *names, const char *part)
{
    struct library library = {};
    struct reason reason;
    expect(library_load_named(names, &library, reason_init(&reason)) == STATUS_NOT_FOUND, "refused",
           part);
    expect(strstr(reason.storage, part) != NULL, part, reason.storage);
    expect(library.create == NULL, "untouched", part);
}

void loaded(const char *const *names)
{
    struct library library = {};
    struct reason reason;
    const enum status status = library_load_named(names, &library, reason_init(&reason));
    expect(status == STATUS_OK, "loaded", reason.storage);
    if (status != STATUS_OK)
        return;
    const uintptr_t *entry = (const uintptr_t *)&library;
    for (size_t i = 0; i < sizeof library / sizeof *entry; i++)
        expect(entry[i] != 0, "entry", "missing");
    expect(library.version() >= 12000, "version", "of an old toolkit");
}

} // namespace

int main()
{
    static const char *const nowhere[] = {"libno-such-blas.so.1", "libnor-this.so", NULL};
    static const char *const other[] = {"libm.so.6", NULL};
    static const char *const second[] = {"libno-such-blas.so.1", "libcublas.so", NULL};
    struct library library = {};
    struct reason reason;
    expect(!is_mapped(), "start", "the program maps cuBLAS without need");
    refused(nowhere, "libno-such-blas.so.1");
    refused(other, "cublasCreate_v2");
    expect(!is_mapped(), "refusals", "they map cuBLAS");
    expect(library_load(&library, reason_init(&reason)) == STATUS_OK, "own names", reason.storage);
    expect(is_mapped(), "own names", "of another version");
    loaded(second);
    printf("library: %s (%d failures)\n", failures == 0 ? "all good" : "FAILED", failures);
    return failures == 0 ? 0 : 1;
}
