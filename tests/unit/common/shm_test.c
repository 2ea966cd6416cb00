#include "common/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { BYTES = 3 * 4096 };

static struct shm make_shm(void)
{
    struct shm shm;
    struct reason reason;
    if (shm_create("test", BYTES, &shm, reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
    return shm;
}

static int reopened(int descriptor)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int found = open(path, O_RDWR | O_CLOEXEC);
    assert_true(found >= 0);
    return found;
}

static void this_system_has_what_is_needed(void **state)
{
    (void)state;
    struct reason reason;
    if (shm_probe(reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
}

static void the_reader_sees_what_the_creator_writes(void **state)
{
    (void)state;
    struct shm creator = make_shm(), receiver;
    assert_true(creator.writable);
    assert_int_equal(fcntl(creator.descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    for (uint32_t i = 0; i < BYTES; i++)
        assert_int_equal(creator.base[i], 0);
    assert_int_equal(shm_open_sealed(dup(creator.descriptor), 4096, BYTES, &receiver, NULL),
                     STATUS_OK);
    assert_false(receiver.writable);
    assert_int_equal(receiver.bytes, BYTES);
    creator.base[BYTES - 1] = 42; /* after sealing: the old mapping goes on */
    assert_int_equal(receiver.base[BYTES - 1], 42);
    shm_close(&creator);
    assert_int_equal(receiver.base[BYTES - 1], 42);
    shm_close(&receiver);
    assert_null(receiver.base);
    shm_close(&receiver); /* a closed one may be closed */
}

/* Each way in which a receiver could touch the bytes or their number. */
static void assert_nothing_can_be_changed(int descriptor)
{
    assert_ptr_equal(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0),
                     MAP_FAILED);
    assert_int_equal(errno, EPERM);
    assert_int_equal(pwrite(descriptor, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(descriptor, 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(descriptor, BYTES + 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fallocate(descriptor, 0, 0, BYTES + 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
                     -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(errno, EPERM);
    void *mapping = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    assert_int_equal(mprotect(mapping, BYTES, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(madvise(mapping, BYTES, MADV_REMOVE), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(munmap(mapping, BYTES), 0);
}

static void the_receiver_can_change_nothing(void **state)
{
    (void)state;
    struct shm creator = make_shm();
    memset(creator.base, 7, BYTES);
    int copy = dup(creator.descriptor), again = reopened(creator.descriptor);
    assert_nothing_can_be_changed(copy);
    assert_nothing_can_be_changed(again);
    for (uint32_t i = 0; i < BYTES; i++)
        assert_int_equal(creator.base[i], 7);
    close(copy);
    close(again);
    shm_close(&creator);
}

/* A write through a reader's mapping ends the process that tries it, and changes nothing. */
static void a_write_through_the_readers_mapping_is_fatal(void **state)
{
    (void)state;
    struct shm creator = make_shm();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        struct sigaction to_default = {.sa_handler = SIG_DFL}; /* cmocka catches it otherwise */
        struct shm receiver;
        if (sigaction(SIGSEGV, &to_default, NULL) != 0 || setrlimit(RLIMIT_CORE, &none) != 0 ||
            dup2(open("/dev/null", O_WRONLY), 2) < 0 ||
            shm_open_sealed(dup(creator.descriptor), 1, BYTES, &receiver, NULL) != STATUS_OK)
            _exit(3);
        *(volatile uint8_t *)receiver.base = 1;
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    /* A sanitizer turns the signal into an exit code of its own. */
    assert_true(WIFSIGNALED(how) || (WEXITSTATUS(how) != 0 && WEXITSTATUS(how) != 3));
    assert_int_equal(creator.base[0], 0);
    shm_close(&creator);
}

/* ---- What a receiver refuses ---- */

static int memory_with(uint64_t bytes, int seals)
{
    int descriptor = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(descriptor >= 0);
    assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, seals), 0);
    return descriptor;
}

static void assert_refused(int descriptor, const char *word)
{
    struct shm shm = {.base = NULL};
    struct reason reason;
    assert_int_equal(shm_open_sealed(descriptor, 4096, BYTES, &shm, reason_init(&reason)),
                     STATUS_BAD_MESSAGE);
    assert_non_null(strstr(reason.storage, word));
    assert_null(shm.base);
    assert_true(fcntl(descriptor, F_GETFD) >= 0); /* still the caller's */
    assert_int_equal(shm_open_sealed(descriptor, 4096, BYTES, &shm, NULL), STATUS_BAD_MESSAGE);
    close(descriptor);
}

static void missing_seals_are_refused(void **state)
{
    (void)state;
    static const int all[] = {F_SEAL_FUTURE_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};
    for (int missing = 0; missing < 4; missing++) {
        int seals = 0;
        for (int i = 0; i < 4; i++)
            seals |= i == missing ? 0 : all[i];
        assert_refused(memory_with(BYTES, seals), "seals");
    }
    assert_refused(memory_with(BYTES, 0), "seals");
}

static void other_sizes_are_refused(void **state)
{
    (void)state;
    int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    assert_refused(memory_with(0, seals), "bytes");
    assert_refused(memory_with(4095, seals), "bytes");
    assert_refused(memory_with(BYTES + 1, seals), "bytes");
    struct shm shm;
    assert_int_equal(shm_open_sealed(memory_with(BYTES, seals), BYTES, BYTES, &shm, NULL),
                     STATUS_OK);
    shm_close(&shm);
}

static void other_descriptors_are_refused(void **state)
{
    (void)state;
    int both[2];
    assert_int_equal(pipe(both), 0);
    assert_refused(both[0], "no sealable memory");
    assert_refused(both[1], "no sealable memory");
    assert_refused(open("/dev/null", O_RDWR), "no sealable memory");
    struct shm shm;
    assert_int_equal(shm_open_sealed(-1, 1, BYTES, &shm, NULL), STATUS_BAD_MESSAGE);
}

/* More than the system can reserve is an answer, not a SIGBUS later. */
static void too_much_memory_is_an_answer(void **state)
{
    (void)state;
    struct rlimit saved, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    assert_int_equal(sigaction(SIGXFSZ, &ignore, &before), 0);
    tight = saved;
    tight.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    struct shm shm = {.base = NULL};
    struct reason reason;
    enum status status = shm_create("test", BYTES, &shm, reason_init(&reason));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    assert_int_equal(sigaction(SIGXFSZ, &before, NULL), 0);
    assert_int_equal(status, STATUS_SYSTEM);
    assert_non_null(strstr(reason.storage, "failed"));
    assert_null(shm.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_system_has_what_is_needed),
        cmocka_unit_test(the_reader_sees_what_the_creator_writes),
        cmocka_unit_test(the_receiver_can_change_nothing),
        cmocka_unit_test(a_write_through_the_readers_mapping_is_fatal),
        cmocka_unit_test(missing_seals_are_refused),
        cmocka_unit_test(other_sizes_are_refused),
        cmocka_unit_test(other_descriptors_are_refused),
        cmocka_unit_test(too_much_memory_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
