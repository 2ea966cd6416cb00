/* Packets with a descriptor, identities of processes, and where sockets lie. */
#include "common/packet_socket.h"
#include "common/process.h"
#include "common/run_directory.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
        for (int i = 0; i < count; i++)
            memcpy(CMSG_DATA(header) + (size_t)i * sizeof client, &client, sizeof client);
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

static void a_process_is_known_by_pid_and_start_time(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    uint64_t own, childs, again;
    assert_int_equal(process_start_time(getpid(), &own), STATUS_OK);
    assert_int_equal(process_start_time(child, &childs), STATUS_OK);
    assert_int_equal(process_start_time(child, &again), STATUS_OK);
    assert_true(own > 0 && childs >= own && childs == again);
    int descriptor;
    assert_int_equal(process_open(child, &descriptor), STATUS_OK);
    struct pollfd waited = {.fd = descriptor, .events = POLLIN};
    assert_int_equal(poll(&waited, 1, 0), 0);
    assert_int_equal(process_kill(descriptor), STATUS_OK);
    assert_int_equal(poll(&waited, 1, 5000), 1);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
    assert_int_equal(process_kill(descriptor), STATUS_NOT_FOUND);
    assert_int_equal(process_start_time(child, &again), STATUS_NOT_FOUND);
    assert_int_equal(process_open(child, &descriptor), STATUS_NOT_FOUND);
    close(descriptor);
}

static void the_run_directory_is_found_in_order(void **state)
{
    (void)state;
    struct run_directory directory;
    struct reason why;
    char path[SOCKET_PATH_BYTES];
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(run_directory_resolve(&directory, "/a/b/", reason_init(&why)), STATUS_OK);
    assert_string_equal(directory.path, "/a/b");
    assert_int_equal(run_directory_resolve(&directory, "", reason_init(&why)), STATUS_OK);
    assert_string_equal(directory.path, "/run/user/7/tandem");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(run_directory_resolve(&directory, "", reason_init(&why)), STATUS_OK);
    assert_string_equal(directory.path, "/run/tandem");
    run_directory_worker_path(&directory, 12, path);
    assert_string_equal(path, "/run/tandem/worker.12.ipc");
    run_directory_path(&directory, RUN_CLIENT_NAME, path);
    assert_string_equal(path, "/run/tandem/client.ipc");
    assert_int_equal(chdir("/tmp"), 0);
    assert_int_equal(run_directory_resolve(&directory, "x", reason_init(&why)), STATUS_OK);
    assert_string_equal(directory.path, "/tmp/x");
}

static void a_run_directory_too_long_for_a_socket_is_refused(void **state)
{
    (void)state;
    struct run_directory directory;
    struct reason why;
    char chosen[200], path[SOCKET_PATH_BYTES];
    for (size_t length = 60; length < 100; length++) {
        memset(chosen, 'd', length);
        chosen[0] = '/';
        chosen[length] = '\0';
        enum status status = run_directory_resolve(&directory, chosen, reason_init(&why));
        if (status == STATUS_OK) {
            run_directory_worker_path(&directory, UINT64_MAX, path); /* CHECKs that it fits */
            assert_true(strlen(path) < SOCKET_PATH_BYTES);
            assert_true(length < 80);
        } else {
            assert_int_equal(status, STATUS_TOO_LARGE);
            assert_non_null(strstr(why.storage, "--run-dir"));
            assert_true(length > 70);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packet_carries_one_descriptor),
        cmocka_unit_test(hostile_packets_leak_no_descriptor),
        cmocka_unit_test(a_process_is_known_by_pid_and_start_time),
        cmocka_unit_test(the_run_directory_is_found_in_order),
        cmocka_unit_test(a_run_directory_too_long_for_a_socket_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
