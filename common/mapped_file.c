#include "common/mapped_file.h"

#include "common/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status system_status(int error)
{
    if (error == ENOENT || error == ENOTDIR)
        return STATUS_NOT_FOUND;
    return error == EACCES || error == EPERM ? STATUS_PERMISSION : STATUS_SYSTEM;
}

enum status mapped_file_open(const char *path, struct mapped_file *out_file, struct text *why)
{
    const uint8_t *bytes = MAP_FAILED;
    size_t length = 0;
    struct stat file;
    /* Without O_NONBLOCK a pipe in the place of the model would hang the start. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &file) != 0) {
        enum status status = system_status(errno);
        text_set(why, "cannot be opened: %s", strerror(errno));
        if (descriptor >= 0)
            close(descriptor);
        return status;
    }
    bool regular = S_ISREG(file.st_mode);
    if (regular && file.st_size > 0) {
        length = (size_t)file.st_size;
        bytes = mmap(NULL, length, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    int error = errno;
    close(descriptor);
    if (!regular || length == 0) {
        text_set(why, regular ? "the file is empty" : "not a regular file");
        return STATUS_BAD_FILE;
    }
    if (bytes == MAP_FAILED) {
        text_set(why, "cannot be mapped: %s", strerror(error));
        return error == ENOMEM ? STATUS_OUT_OF_MEMORY : STATUS_SYSTEM;
    }
    *out_file = (struct mapped_file){bytes, length};
    return STATUS_OK;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file->bytes != NULL)
        munmap((void *)(uintptr_t)file->bytes, file->length);
    *file = (struct mapped_file){0};
}

void mapped_file_drop(const struct mapped_file *file, size_t offset, size_t length)
{
    CHECK(offset <= file->length && length <= file->length - offset);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t start = offset / page * page;
    /* A neighbour on the first or last page is read from the file again. */
    (void)madvise((void *)(uintptr_t)(file->bytes + start), offset + length - start, MADV_DONTNEED);
}
