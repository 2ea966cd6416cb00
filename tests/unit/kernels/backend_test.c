#include "kernels/backend.h"
#include "kernels/cpu/device.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static struct backend *open_backend(uint32_t isa, uint32_t threads)
{
    struct backend_options options = {.kind = BACKEND_CPU, .cpu_isa = isa, .threads = threads};
    struct backend *backend = NULL;
    struct reason reason;
    enum status status = backend_open(&options, &backend, reason_init(&reason));
    if (status == STATUS_UNSUPPORTED) {
        assert_true(isa != CPU_ISA_AUTO && isa != CPU_ISA_PLAIN); /* those run everywhere */
        assert_true(reason.text.length > 0);
        return NULL;
    }
    assert_int_equal(status, STATUS_OK);
    return backend;
}

/* What AUTO takes where the widest level is that: no vdpbf16ps that is slower than what it saves.
 */
static const char *quickest(const char *widest)
{
    bool slow = __builtin_cpu_is("intel") && strcmp(widest, "cpu-avx512-bf16") == 0;
    return slow ? "cpu-avx512" : widest;
}

static void the_forced_instruction_set_is_taken(void **state)
{
    (void)state;
    static const struct {
        uint32_t isa;
        const char *name;
    } levels[] = {{CPU_ISA_PLAIN, "cpu-plain"},
                  {CPU_ISA_AVX2, "cpu-avx2"},
                  {CPU_ISA_AVX512, "cpu-avx512"},
                  {CPU_ISA_AVX512_BF16, "cpu-avx512-bf16"},
                  {CPU_ISA_AMX, "cpu-amx"}};
    const char *widest = NULL;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        struct backend *forced = open_backend(levels[i].isa, 1);
        if (forced == NULL)
            continue;
        assert_string_equal(forced->name, levels[i].name);
        widest = levels[i].name;
        backend_close(forced);
    }
    struct backend *automatic = open_backend(CPU_ISA_AUTO, 1);
    assert_string_equal(automatic->name, quickest(widest));
    backend_close(automatic);
}

/* As a system that does not save tiles: it refuses to be asked for them. */
static void refuse_tiles(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* In a process of its own: a filter stays. */
static void tiles_that_nobody_saves_are_not_used(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        refuse_tiles();
        struct backend *automatic = open_backend(CPU_ISA_AUTO, 1);
        bool good = strcmp(automatic->name, "cpu-amx") != 0;
        backend_close(automatic);
        _exit(good && open_backend(CPU_ISA_AMX, 1) == NULL ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void threads_are_as_asked(void **state)
{
    (void)state;
    struct backend *three = open_backend(CPU_ISA_PLAIN, 3),
                   *automatic = open_backend(CPU_ISA_AUTO, 0);
    assert_int_equal(three->threads, 3);
    assert_true(automatic->threads >= 1);
    backend_close(automatic);
    backend_close(three);
}

/* Pinned threads compute; the caller's thread may go where it could go before, on a machine with
 * several memory nodes at the latest when the backend is closed. */
static void pinned_threads_leave_the_caller_alone(void **state)
{
    struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_AUTO, .threads = 4, .pin_threads = 1};
    struct backend *backend = NULL;
    struct reason reason;
    cpu_set_t before, after;
    float ones[4096], sums[4096] = {0};
    (void)state;
    for (int i = 0; i < 4096; i++)
        ones[i] = 1;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(backend_open(&options, &backend, reason_init(&reason)), STATUS_OK);
    for (int turn = 0; turn < 100; turn++)
        backend->operations->add(backend, &(struct add_args){sums, ones, 4096, 1});
    assert_true(sums[0] == 100 && sums[4095] == 100);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after) || cpu_backend_of(backend)->placement.kept);
    backend_close(backend);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

/* The attach protocol compares this text: instruction set and threads must not show in it, the
 * pool's type must. */
static void arithmetic_names_version_and_pool(void **state)
{
    (void)state;
    struct backend *plain = open_backend(CPU_ISA_PLAIN, 1),
                   *automatic = open_backend(CPU_ISA_AUTO, 2);
    assert_string_equal(backend_arithmetic(plain, KV_TYPE_F16), "cpu-2-f16");
    assert_string_equal(backend_arithmetic(automatic, KV_TYPE_F16), "cpu-2-f16");
    assert_string_equal(backend_arithmetic(automatic, KV_TYPE_F32), "cpu-2-f32");
    backend_close(automatic);
    backend_close(plain);
    backend_close(NULL);
}

/* Where CUDA was asked for and cannot be had the reason is told; otherwise the CPU computes. */
static void without_a_device_the_cpu_computes(void **state)
{
    (void)state;
    struct backend_options options = {.kind = BACKEND_CUDA, .threads = 1};
    struct backend *backend = NULL;
    struct reason reason;
    if (backend_open(&options, &backend, reason_init(&reason)) == STATUS_OK) {
        assert_int_equal(backend->kind, BACKEND_CUDA);
        backend_close(backend);
        return; /* this machine has one */
    }
    assert_null(backend);
    assert_non_null(strstr(reason.storage, "CUDA"));
    options.kind = BACKEND_AUTO;
    assert_int_equal(backend_open(&options, &backend, reason_init(&reason)), STATUS_OK);
    assert_int_equal(backend->kind, BACKEND_CPU);
    assert_int_equal(reason.text.length, 0);
    backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_forced_instruction_set_is_taken),
        cmocka_unit_test(tiles_that_nobody_saves_are_not_used),
        cmocka_unit_test(threads_are_as_asked),
        cmocka_unit_test(pinned_threads_leave_the_caller_alone),
        cmocka_unit_test(arithmetic_names_version_and_pool),
        cmocka_unit_test(without_a_device_the_cpu_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
