/* One coordinator per run directory, and what it finds there. */
#include "coordinator/run_lock.h"

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct place {
    char above[32];
    struct run_directory directory;
};

static void make_place(struct place *place)
{
    *place = (struct place){.above = "/tmp/tandem-lock-XXXXXX"};
    assert_non_null(mkdtemp(place->above));
    snprintf(place->directory.path, sizeof place->directory.path, "%s/run", place->above);
}

static void touch(const struct run_directory *directory, const char *name)
{
    char path[SOCKET_PATH_BYTES];
    run_directory_path(directory, name, path);
    int descriptor = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(descriptor >= 0);
    close(descriptor);
}

static bool exists(const struct run_directory *directory, const char *name)
{
    char path[SOCKET_PATH_BYTES];
    struct stat metadata;
    run_directory_path(directory, name, path);
    return stat(path, &metadata) == 0;
}

static int remove_entry(const char *path, const struct stat *metadata, int kind, struct FTW *place)
{
    (void)metadata, (void)kind, (void)place;
    return remove(path);
}

static void remove_place(const struct place *place)
{
    assert_int_equal(nftw(place->above, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void the_second_hears_who_is_there(void **state)
{
    (void)state;
    struct place place;
    struct reason why;
    int lock = -1, second = -1;
    char pid[32];
    make_place(&place);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_OK);
    struct stat metadata;
    assert_int_equal(stat(place.directory.path, &metadata), 0);
    assert_int_equal(metadata.st_mode & 07777, 0711);
    assert_int_equal(run_lock_take(&place.directory, &second, reason_init(&why)), STATUS_BUSY);
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_non_null(strstr(why.storage, pid));
    assert_non_null(strstr(why.storage, "--run-dir"));
    close(lock);
    assert_int_equal(run_lock_take(&place.directory, &second, reason_init(&why)), STATUS_OK);
    close(second);
    remove_place(&place);
}

static void the_lock_dies_with_its_owner(void **state)
{
    (void)state;
    struct place place;
    struct reason why;
    int lock = -1, result, ready[2];
    char byte;
    make_place(&place);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody behind */
        if (run_lock_take(&place.directory, &lock, NULL) != STATUS_OK ||
            write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_BUSY);
    kill(child, SIGKILL);
    waitpid(child, &result, 0);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_OK);
    close(lock);
    close(ready[0]);
    close(ready[1]);
    remove_place(&place);
}

static void only_sockets_of_a_coordinator_are_cleared(void **state)
{
    (void)state;
    static const char *const gone[] = {"client.ipc", "attach.sock", "worker.1.ipc",
                                       "worker.18446744073709551615.ipc"};
    static const char *const kept[] = {"lock",           "worker.ipc",  "worker.1.ipc.log",
                                       "myworker.1.ipc", "client.ipc2", "journal"};
    struct place place;
    struct reason why;
    int lock;
    make_place(&place);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_OK);
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        touch(&place.directory, gone[i]);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        touch(&place.directory, kept[i]);
    run_lock_clear_sockets(&place.directory);
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        assert_false(exists(&place.directory, gone[i]));
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_true(exists(&place.directory, kept[i]));
    close(lock);
    remove_place(&place);
}

static void directories_that_do_not_do_are_refused(void **state)
{
    (void)state;
    struct place place;
    struct reason why;
    int lock;
    make_place(&place);
    snprintf(place.directory.path, sizeof place.directory.path, "%s/run/deeper", place.above);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_SYSTEM);
    assert_non_null(strstr(why.storage, "make the directory above it"));

    snprintf(place.directory.path, sizeof place.directory.path, "%s/file", place.above);
    close(open(place.directory.path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_SYSTEM);
    assert_non_null(strstr(why.storage, "is no directory"));

    snprintf(place.directory.path, sizeof place.directory.path, "%s/open", place.above);
    assert_int_equal(mkdir(place.directory.path, 0777), 0);
    assert_int_equal(chmod(place.directory.path, 01777), 0);
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_PERMISSION);
    assert_non_null(strstr(why.storage, "1777"));

    assert_int_equal(chmod(place.directory.path, 0700), 0);
    char path[SOCKET_PATH_BYTES];
    run_directory_path(&place.directory, RUN_LOCK_NAME, path);
    assert_int_equal(symlink("/tmp/tandem-elsewhere", path), 0); /* not through a link of others */
    assert_int_equal(run_lock_take(&place.directory, &lock, reason_init(&why)), STATUS_SYSTEM);
    remove_place(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_hears_who_is_there),
        cmocka_unit_test(the_lock_dies_with_its_owner),
        cmocka_unit_test(only_sockets_of_a_coordinator_are_cleared),
        cmocka_unit_test(directories_that_do_not_do_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
