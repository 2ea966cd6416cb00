#include "common/packet_socket.h"

#include "common/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A peer may send more descriptors than the one we want; what arrives has to be closed. */
enum { PASSED_MAX = 8, WAITING_MAX = 16 };

static enum status status_of_errno(void)
{
    switch (errno) {
    case EAGAIN:
        return STATUS_AGAIN;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return STATUS_CLOSED;
    case EACCES:
    case EPERM:
        return STATUS_PERMISSION;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return STATUS_NOT_FOUND;
    default:
        return STATUS_SYSTEM;
    }
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    CHECK(length < sizeof address.sun_path); /* run_directory.h keeps paths short */
    memcpy(address.sun_path, path, length);
    return address;
}

enum status packet_socket_listen(const char *path, mode_t mode, int *out_descriptor,
                                 struct text *why)
{
    struct sockaddr_un address = address_of(path);
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        goto fail;
    if (unlink(path) != 0 && errno != ENOENT)
        goto fail;
    /* The mode is set between bind and listen: nobody can connect before it is right. */
    if (bind(descriptor, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(path, mode) != 0 || listen(descriptor, WAITING_MAX) != 0)
        goto fail;
    *out_descriptor = descriptor;
    return STATUS_OK;
fail:;
    enum status status = status_of_errno();
    text_set(why, "cannot listen at \"%s\": %s", path, strerror(errno));
    if (descriptor >= 0)
        close(descriptor);
    return status == STATUS_PERMISSION ? STATUS_PERMISSION : STATUS_SYSTEM;
}

enum status packet_socket_accept(int listener, int *out_descriptor, struct peer_identity *out_peer)
{
    int descriptor = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0)
        return status_of_errno();
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
        close(descriptor);
        return STATUS_SYSTEM;
    }
    *out_descriptor = descriptor;
    *out_peer = (struct peer_identity){
        .pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
    return STATUS_OK;
}

enum status packet_socket_connect(const char *path, int *out_descriptor)
{
    struct sockaddr_un address = address_of(path);
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
        return STATUS_SYSTEM;
    if (connect(descriptor, (const struct sockaddr *)&address, sizeof address) != 0) {
        enum status status = status_of_errno();
        close(descriptor);
        return status;
    }
    *out_descriptor = descriptor;
    return STATUS_OK;
}

enum status packet_socket_send(int descriptor, const void *bytes, size_t length, int passed)
{
    union {
        char storage[CMSG_SPACE(sizeof(int))];
        struct cmsghdr alignment;
    } control = {.storage = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = control.storage;
        message.msg_controllen = sizeof control.storage;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    ssize_t sent;
    do {
        sent = sendmsg(descriptor, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? status_of_errno() : STATUS_OK;
}

/* Keeps the first descriptor of the message in *passed and closes any other; returns how many there
 * were. */
static size_t take_descriptors(struct msghdr *message, int *passed)
{
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
            if (count++ == 0)
                *passed = descriptor;
            else
                close(descriptor);
        }
    }
    return count;
}

enum status packet_socket_receive(int descriptor, void *buffer, size_t capacity, size_t *out_length,
                                  int *out_passed)
{
    union {
        char storage[CMSG_SPACE(PASSED_MAX * sizeof(int))];
        struct cmsghdr alignment;
    } control;
    struct iovec part = {.iov_base = buffer, .iov_len = capacity};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.storage,
                             .msg_controllen = sizeof control.storage};
    ssize_t length;
    do {
        length = recvmsg(descriptor, &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    if (length < 0)
        return status_of_errno();
    int passed = -1;
    size_t count = take_descriptors(&message, &passed);
    enum status status = STATUS_OK;
    if (length == 0)
        status = STATUS_CLOSED; /* an empty packet says nothing either */
    else if ((message.msg_flags & MSG_TRUNC) != 0)
        status = STATUS_TOO_LARGE;
    else if (count > 1 || (message.msg_flags & MSG_CTRUNC) != 0)
        status = STATUS_BAD_MESSAGE;
    if (status != STATUS_OK) {
        if (passed >= 0)
            close(passed);
        return status;
    }
    *out_length = (size_t)length;
    *out_passed = passed;
    return STATUS_OK;
}
