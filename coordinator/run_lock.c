#include "coordinator/run_lock.h"

#include "common/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Others may pass through to the sockets, whose own modes decide; nobody else may list or add. */
enum { DIRECTORY_MODE = 0711, LOCK_MODE = 0644 };

static enum status failed(struct text *why, const char *what, const char *path)
{
    int error = errno;
    text_set(why, "cannot %s \"%s\": %s", what, path, strerror(error));
    if (error == EACCES || error == EPERM || error == EROFS) {
        text_format(why, "; give --run-dir with a directory that this user may write");
        return STATUS_PERMISSION;
    }
    if (error == ENOENT)
        text_format(why, "; make the directory above it first, or give another --run-dir");
    else if (error == ENOSPC || error == EDQUOT)
        text_format(why, "; free some space, or give --run-dir on another file system");
    return STATUS_SYSTEM;
}

static enum status make_directory(const char *path, struct text *why)
{
    struct stat metadata;
    if (mkdir(path, DIRECTORY_MODE) == 0) {
        if (chmod(path, DIRECTORY_MODE) != 0) /* the umask may have taken bits away */
            return failed(why, "set the mode of", path);
        return STATUS_OK;
    }
    if (errno != EEXIST)
        return failed(why, "make the run directory", path);
    if (stat(path, &metadata) != 0)
        return failed(why, "look at the run directory", path);
    if (!S_ISDIR(metadata.st_mode)) {
        text_set(why, "\"%s\" is no directory; remove it or give another --run-dir", path);
        return STATUS_SYSTEM;
    }
    if ((metadata.st_mode & S_IWOTH) != 0) {
        text_set(why,
                 "everybody may write into the run directory \"%s\" (mode %04o); remove that "
                 "right with chmod o-w, or give another --run-dir",
                 path, (unsigned)metadata.st_mode & 07777);
        return STATUS_PERMISSION;
    }
    return STATUS_OK;
}

static enum status lock_file(int descriptor, const char *path, struct text *why)
{
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0)
        return STATUS_OK;
    if (errno != EWOULDBLOCK)
        return failed(why, "lock", path);
    char owner[32] = "";
    ssize_t length = read(descriptor, owner, sizeof owner - 1);
    long pid = length > 0 ? strtol(owner, NULL, 10) : 0;
    text_set(why,
             "the run directory is in use: \"%s\" is locked by process %ld; stop that "
             "coordinator or give another --run-dir",
             path, pid);
    return STATUS_BUSY;
}

enum status run_lock_take(const struct run_directory *directory, int *out_descriptor,
                          struct text *why)
{
    char path[SOCKET_PATH_BYTES];
    enum status status = make_directory(directory->path, why);
    if (status != STATUS_OK)
        return status;
    run_directory_path(directory, RUN_LOCK_NAME, path);
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, LOCK_MODE);
    if (descriptor < 0)
        return failed(why, "open", path);
    status = lock_file(descriptor, path, why);
    if (status == STATUS_OK) {
        char owner[32];
        int length = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
        if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, owner, (size_t)length, 0) != length)
            status = failed(why, "write", path);
    }
    if (status != STATUS_OK) {
        close(descriptor);
        return status;
    }
    *out_descriptor = descriptor;
    return STATUS_OK;
}

static bool is_socket_name(const char *name)
{
    size_t length = strlen(name);
    return strcmp(name, RUN_CLIENT_NAME) == 0 || strcmp(name, RUN_ATTACH_NAME) == 0 ||
           (strncmp(name, "worker.", 7) == 0 && length > 11 &&
            strcmp(name + length - 4, ".ipc") == 0);
}

void run_lock_clear_sockets(const struct run_directory *directory)
{
    DIR *listing = opendir(directory->path);
    if (listing == NULL)
        return; /* a mode without r: listening says what is wrong, if anything is */
    struct dirent *entry;
    while ((entry = readdir(listing)) != NULL)
        if (is_socket_name(entry->d_name) && unlinkat(dirfd(listing), entry->d_name, 0) == 0)
            log_debug("socket_left_over", "name=%s", entry->d_name);
    closedir(listing);
}
