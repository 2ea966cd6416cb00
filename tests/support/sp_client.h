/* A REQ client over a plain socket, byte by byte, for unit tests of the client port and its probe.
 */
#ifndef TANDEM_TESTS_SUPPORT_SP_CLIENT_H
#define TANDEM_TESTS_SUPPORT_SP_CLIENT_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { SP_HELLO_BYTES = 8, SP_HEAD_BYTES = 9, SP_ID_BYTES = 4, SP_BODY_BYTES_MAX = 1 << 20 };

static const uint8_t sp_hello_req[SP_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t sp_hello_rep[SP_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

static inline bool sp_read(int connection, void *out, size_t bytes)
{
    return recv(connection, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static inline bool sp_write(int connection, const void *from, size_t bytes)
{
    return send(connection, from, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* A connection, not yet greeted; reads give up after five seconds. -1: nobody listens. */
static inline int sp_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 5};
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, path, strlen(path));
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        close(connection);
        return -1;
    }
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return connection;
}

static inline bool sp_greet(int connection)
{
    uint8_t hello[SP_HELLO_BYTES];
    return sp_write(connection, sp_hello_req, sizeof sp_hello_req) &&
           sp_read(connection, hello, sizeof hello) &&
           memcmp(hello, sp_hello_rep, sizeof hello) == 0;
}

static inline bool sp_ask(int connection, uint32_t number, const void *body, size_t bytes)
{
    uint8_t head[SP_HEAD_BYTES + SP_ID_BYTES] = {1};
    uint64_t length = htobe64(SP_ID_BYTES + bytes);
    uint32_t id = htobe32(0x80000000u | number);
    memcpy(head + 1, &length, sizeof length);
    memcpy(head + SP_HEAD_BYTES, &id, sizeof id);
    return sp_write(connection, head, sizeof head) && sp_write(connection, body, bytes);
}

/* The body of the answer to `number` into `out` of `capacity`; 0: none came or it was cut off. */
static inline size_t sp_answer(int connection, uint32_t number, void *out, size_t capacity)
{
    uint8_t head[SP_HEAD_BYTES + SP_ID_BYTES];
    uint64_t length;
    uint32_t id;
    if (!sp_read(connection, head, sizeof head))
        return 0;
    memcpy(&length, head + 1, sizeof length);
    memcpy(&id, head + SP_HEAD_BYTES, sizeof id);
    length = be64toh(length) - SP_ID_BYTES;
    if (head[0] != 1 || be32toh(id) != (0x80000000u | number) || length > capacity ||
        !sp_read(connection, out, length))
        return 0;
    return length;
}

#endif
