/* A regular file mapped for reading. The mapping is private and never written. A file that another
 * process shortens while it is mapped raises SIGBUS: who lives long copies what is needed and
 * closes. */
#ifndef TANDEM_COMMON_MAPPED_FILE_H
#define TANDEM_COMMON_MAPPED_FILE_H

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>
#include <stdint.h>

struct mapped_file {
    const uint8_t *bytes; /* owned mapping; NULL if nothing is mapped */
    size_t length;
};

/* STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_SYSTEM, STATUS_OUT_OF_MEMORY or STATUS_BAD_FILE (no
 * regular file, or an empty one); `why` says what is wrong, without the path. Close with
 * mapped_file_close(). */
MUST_USE enum status mapped_file_open(const char *path, struct mapped_file *out_file,
                                      struct text *why);

/* Accepts a zeroed object. */
void mapped_file_close(struct mapped_file *file);

/* Tells the system that the pages around bytes [offset, offset + length) are not needed any more;
 * reading them again still works. */
void mapped_file_drop(const struct mapped_file *file, size_t offset, size_t length);

#endif
