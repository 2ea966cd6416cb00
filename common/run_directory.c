#include "common/run_directory.h"

#include "common/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The longest name that is put behind the directory: "/worker.<20 digits>.ipc". */
enum { NAME_BYTES_MAX = sizeof "/worker.18446744073709551615.ipc" - 1 };

enum status run_directory_resolve(struct run_directory *directory, const char *chosen,
                                  struct text *why)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char current[4096];
    char storage[8192];
    struct text path;
    text_init(&path, storage, sizeof storage);
    if (chosen[0] != '\0') {
        if (chosen[0] != '/' && getcwd(current, sizeof current) != NULL)
            text_format(&path, "%s/", current);
        text_format(&path, "%s", chosen);
    } else if (runtime != NULL && runtime[0] == '/') {
        text_format(&path, "%s/tandem", runtime);
    } else {
        text_format(&path, "/run/tandem");
    }
    while (path.length > 1 && path.bytes[path.length - 1] == '/')
        path.bytes[--path.length] = '\0';
    size_t limit = SOCKET_PATH_BYTES - 1 - NAME_BYTES_MAX;
    if (path.length > limit) {
        text_set(why,
                 "the run directory \"%s\" has %zu bytes, a socket path in it would be too long; "
                 "give --run-dir with at most %zu bytes",
                 storage, path.length, limit);
        return STATUS_TOO_LARGE;
    }
    memcpy(directory->path, path.bytes, path.length + 1);
    return STATUS_OK;
}

void run_directory_path(const struct run_directory *directory, const char *name, char *out_path)
{
    int length = snprintf(out_path, SOCKET_PATH_BYTES, "%s/%s", directory->path, name);
    CHECK(length > 0 && length < SOCKET_PATH_BYTES);
}

void run_directory_worker_path(const struct run_directory *directory, uint64_t epoch,
                               char *out_path)
{
    char name[NAME_BYTES_MAX + 1];
    snprintf(name, sizeof name, "worker.%" PRIu64 ".ipc", epoch);
    run_directory_path(directory, name, out_path);
}
