/* Foreign processes keep every processor busy: threads of the pool are taken off theirs in the
 * middle of a share, and the bits must not show it. */
#include "common/check.h"
#include "kernels/scene.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { BUSY_MAX = 64, CHUNK = 48, FIRST = 270, TURNS = 20 };

static const struct scene_options options = {.heads = 9,
                                             .kv_heads = 3,
                                             .head_dim = 64,
                                             .block_tokens = 16,
                                             .type = KV_TYPE_F16,
                                             .layers = 1,
                                             .slots = 2,
                                             .context = 400,
                                             .shuffle = 5};

static pid_t busy[BUSY_MAX];
static uint32_t busy_count;

static int start_busy(void **state)
{
    (void)state;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    busy_count = processors < BUSY_MAX ? (uint32_t)processors : BUSY_MAX;
    for (uint32_t i = 0; i < busy_count; i++) {
        busy[i] = fork();
        CHECK(busy[i] >= 0);
        if (busy[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint32_t turn = 0;; turn++)
                continue;
        }
    }
    return 0;
}

static int end_busy(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < busy_count; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    return 0;
}

/* A chunk of a prompt and a row that decodes: many shares of unequal length, and split segments. */
static void attend(struct backend *backend, float *chunk, float *decode)
{
    struct scene scene;
    struct scene_row rows[CHUNK], last = {1, 399};
    for (uint32_t i = 0; i < CHUNK; i++)
        rows[i] = (struct scene_row){0, FIRST + i};
    scene_open(&scene, backend, &options);
    scene_write(&scene, 0, 0, 0, FIRST + CHUNK);
    scene_write(&scene, 0, 1, 0, 400);
    scene_attend(&scene, 0, rows, CHUNK, true, chunk);
    scene_attend(&scene, 0, &last, 1, false, decode);
    scene_close(&scene);
}

static void busy_processors_change_no_bit(void **state)
{
    enum { WIDTH = 9 * 64 };
    static float reference_chunk[CHUNK * WIDTH], reference_decode[WIDTH];
    static float chunk[CHUNK * WIDTH], decode[WIDTH];
    (void)state;
    struct backend *first = subject_open(&subjects[0]);
    attend(first, reference_chunk, reference_decode);
    backend_close(first);
    for (size_t s = 1; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (int turn = 0; turn < TURNS; turn++) {
            attend(backend, chunk, decode);
            assert_same_bits(subjects[s].name, chunk, reference_chunk, sizeof chunk);
            assert_same_bits(subjects[s].name, decode, reference_decode, sizeof decode);
        }
        backend_close(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(busy_processors_change_no_bit, start_busy, end_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
