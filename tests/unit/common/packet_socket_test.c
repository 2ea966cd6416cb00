/* Packets with a descriptor, honest and hostile ones. */
#include "common/packet_socket.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void open_pair(int *out_server, int *out_client)
{
    char directory[] = "/tmp/tandem-packet-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/a.sock", directory);
    int listener;
    struct reason why;
    assert_int_equal(packet_socket_listen(path, 0660, &listener, reason_init(&why)), STATUS_OK);
    struct stat metadata;
    assert_int_equal(stat(path, &metadata), 0);
    assert_int_equal(metadata.st_mode & 0777, 0660);
    struct peer_identity peer;
    assert_int_equal(packet_socket_accept(listener, out_server, &peer), STATUS_AGAIN);
    assert_int_equal(packet_socket_connect(path, out_client), STATUS_OK);
    assert_int_equal(packet_socket_accept(listener, out_server, &peer), STATUS_OK);
    assert_int_equal(peer.pid, getpid());
    assert_int_equal(peer.uid, getuid());
    assert_int_equal(peer.gid, getgid());
    close(listener);
    int nobody;
    assert_int_equal(packet_socket_connect(path, &nobody), STATUS_NOT_FOUND);
    unlink(path);
    assert_int_equal(packet_socket_connect(path, &nobody), STATUS_NOT_FOUND);
    rmdir(directory);
}

static void a_packet_carries_one_descriptor(void **state)
{
    (void)state;
    int server, client, passed;
    open_pair(&server, &client);
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    char buffer[16];
    size_t length;
    assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                     STATUS_AGAIN);
    assert_int_equal(packet_socket_send(client, "hello", 5, pair[1]), STATUS_OK);
    assert_int_equal(packet_socket_send(client, "again", 5, -1), STATUS_OK);
    assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                     STATUS_OK);
    assert_int_equal(length, 5);
    assert_memory_equal(buffer, "hello", 5);
    assert_true(passed >= 0);
    assert_true((fcntl(passed, F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(write(passed, "x", 1), 1);
    assert_int_equal(read(pair[0], buffer, 1), 1);
    close(passed);
    assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                     STATUS_OK);
    assert_int_equal(passed, -1);
    close(client);
    assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                     STATUS_CLOSED);
    assert_int_equal(packet_socket_send(server, "x", 1, -1), STATUS_CLOSED);
    close(server);
    close(pair[0]);
    close(pair[1]);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int i = 0; i < 256; i++)
        count += fcntl(i, F_GETFD) >= 0;
    return count;
}

static void hostile_packets_leak_no_descriptor(void **state)
{
    (void)state;
    int server, client, passed;
    open_pair(&server, &client);
    int before = open_descriptors();
    char buffer[8];
    size_t length;
    int copies[12];
    for (int i = 0; i < 12; i++)
        copies[i] = client;
    for (int count = 2; count <= 12; count++) { /* more than the receiver has room for, too */
        union {
            char storage[CMSG_SPACE(12 * sizeof(int))];
            struct cmsghdr alignment;
        } control = {.storage = {0}};
        struct iovec part = {.iov_base = (void *)(uintptr_t) "many", .iov_len = 4};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.storage,
                                 .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(header), copies, (size_t)count * sizeof(int));
        assert_int_equal(sendmsg(client, &message, 0), 4);
        assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                         STATUS_BAD_MESSAGE);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(packet_socket_send(client, "far too long", 12, client), STATUS_OK);
    assert_int_equal(packet_socket_receive(server, buffer, sizeof buffer, &length, &passed),
                     STATUS_TOO_LARGE);
    assert_int_equal(open_descriptors(), before);
    close(server);
    close(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packet_carries_one_descriptor),
        cmocka_unit_test(hostile_packets_leak_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
