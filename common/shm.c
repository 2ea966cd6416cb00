#include "common/shm.h"

#include "common/check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* With these four nobody, the creator included, can make another writable mapping or change the
 * size. */
enum { SEALS = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static enum status system_failure(struct text *why, const char *call, const char *label)
{
    int error = errno;
    text_set(why, "%s for shared memory \"%s\" failed: %s", call, label, strerror(error));
    return error == ENOMEM || error == ENOSPC ? STATUS_OUT_OF_MEMORY : STATUS_SYSTEM;
}

/* Reserves, maps and seals an empty memfd; the descriptor stays the caller's. */
static enum status fill(int descriptor, const char *label, uint64_t bytes, uint8_t **out_base,
                        struct text *why)
{
    if (ftruncate(descriptor, (off_t)bytes) != 0)
        return system_failure(why, "ftruncate", label);
    /* Space that lacks is found here, not by a SIGBUS later. */
    int error;
    do
        error = posix_fallocate(descriptor, 0, (off_t)bytes);
    while (error == EINTR);
    if (error != 0) {
        errno = error;
        return system_failure(why, "fallocate", label);
    }
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      descriptor, 0);
    if (base == MAP_FAILED)
        return system_failure(why, "mmap", label);
    if (fcntl(descriptor, F_ADD_SEALS, SEALS) != 0) {
        enum status status = system_failure(why, "fcntl(F_ADD_SEALS)", label);
        if (status == STATUS_SYSTEM && errno == EINVAL) {
            text_set(why, "the kernel lacks F_SEAL_FUTURE_WRITE; Linux 5.1 or later is needed");
            status = STATUS_UNSUPPORTED;
        }
        CHECK(munmap(base, (size_t)bytes) == 0);
        return status;
    }
    *out_base = base;
    return STATUS_OK;
}

enum status shm_create(const char *label, uint64_t bytes, struct shm *out_shm, struct text *why)
{
    CHECK(bytes > 0 && bytes <= INT64_MAX);
    int descriptor = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0 && errno == ENOSYS) {
        text_set(why, "the kernel lacks memfd_create; Linux 5.1 or later is needed");
        return STATUS_UNSUPPORTED;
    }
    if (descriptor < 0)
        return system_failure(why, "memfd_create", label);
    uint8_t *base;
    enum status status = fill(descriptor, label, bytes, &base, why);
    if (status != STATUS_OK) {
        close(descriptor);
        return status;
    }
    *out_shm = (struct shm){base, bytes, descriptor, true};
    return STATUS_OK;
}

enum status shm_probe(struct text *why)
{
    struct shm shm;
    enum status status = shm_create("tandem-probe", 4096, &shm, why);
    if (status == STATUS_OK)
        shm_close(&shm);
    return status;
}

enum status shm_open_sealed(int descriptor, uint64_t bytes_min, uint64_t bytes_max,
                            struct shm *out_shm, struct text *why)
{
    int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals < 0) {
        text_set(why, "the peer's descriptor is no sealable memory: %s", strerror(errno));
        return STATUS_BAD_MESSAGE;
    }
    if ((seals & SEALS) != SEALS) {
        text_set(why, "the peer's memory has seals 0x%x, needed are 0x%x", (unsigned)seals,
                 (unsigned)SEALS);
        return STATUS_BAD_MESSAGE;
    }
    struct stat found;
    if (fstat(descriptor, &found) != 0)
        return system_failure(why, "fstat", "of the peer");
    if (found.st_size < 0 || (uint64_t)found.st_size < bytes_min ||
        (uint64_t)found.st_size > bytes_max) {
        text_set(why,
                 "the peer's memory has %" PRId64 " bytes, allowed are %" PRIu64 " to %" PRIu64,
                 (int64_t)found.st_size, bytes_min, bytes_max);
        return STATUS_BAD_MESSAGE;
    }
    void *base = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED)
        return system_failure(why, "mmap", "of the peer");
    *out_shm = (struct shm){base, (uint64_t)found.st_size, descriptor, false};
    return STATUS_OK;
}

void shm_unmap(struct shm *shm)
{
    if (shm->base == NULL)
        return;
    CHECK(munmap(shm->base, (size_t)shm->bytes) == 0);
    *shm = (struct shm){0};
}

void shm_close(struct shm *shm)
{
    if (shm->base == NULL)
        return;
    int descriptor = shm->descriptor;
    shm_unmap(shm);
    close(descriptor);
}
