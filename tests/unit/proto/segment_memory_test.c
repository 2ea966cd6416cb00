#include "proto/segment_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct segment_identity identity = {.epoch = 4};

static struct segment_extents extents_of(uint32_t slots, uint32_t context)
{
    struct segment_extents extents = {
        .geometry = {3, 2, 64, 16, KV_TYPE_F16, KV_ORDER_CPU},
        .slots = slots,
        .context = context,
        .vocabulary = 1000,
        .step_tokens = 64,
        .pool_blocks = 300,
    };
    extents.logical_blocks = kv_blocks_for(&extents.geometry, context);
    return extents;
}

static void a_segment_goes_through_a_descriptor(void **state)
{
    (void)state;
    struct segment_extents extents = extents_of(4, 100);
    struct shm creator, receiver;
    struct segment_writer writer;
    struct segment_reader reader;
    assert_int_equal(coordinator_segment_create(&extents, &identity, &creator, &writer, NULL),
                     STATUS_OK);
    assert_int_equal(coordinator_segment_open(dup(creator.descriptor), &receiver, &reader, NULL),
                     STATUS_OK);
    const uint32_t token = 17;
    uint32_t seen = 0;
    segment_write_tokens(&writer, 3, 99, &token, 1);
    segment_publish_step(&writer, 1);
    assert_true(segment_published_step(&reader) == 1);
    segment_read_tokens(&reader, 3, 99, 1, &seen);
    assert_int_equal(seen, 17);
    assert_memory_equal(&reader.header.extents, &extents, sizeof extents);
    segment_fence(&writer);
    shm_close(&creator);
    assert_int_equal(segment_reader_state(&reader), SEGMENT_STATE_FENCED);
    shm_close(&receiver);

    struct worker_segment_writer worker;
    struct worker_segment_reader watcher;
    assert_int_equal(worker_segment_create(&identity, &creator, &worker, NULL), STATUS_OK);
    assert_int_equal(worker_segment_accept(dup(creator.descriptor), &receiver, &watcher, NULL),
                     STATUS_OK);
    worker_segment_beat(&worker, 5);
    assert_true(worker_segment_alive_ns(&watcher) == 5);
    shm_close(&creator);
    shm_close(&receiver);
}

static void impossible_extents_are_refused(void **state)
{
    (void)state;
    struct segment_extents extents = extents_of(LIMIT_SLOTS + 1, 100);
    struct shm shm = {.base = NULL};
    struct segment_writer writer = {.base = NULL};
    struct reason reason;
    assert_int_equal(
        coordinator_segment_create(&extents, &identity, &shm, &writer, reason_init(&reason)),
        STATUS_INVALID);
    assert_non_null(strstr(reason.storage, "slots is 1025"));
    assert_null(shm.base);
    assert_null(writer.base);
}

/* Sealed memory whose bytes are no segment: refused, and the descriptor stays with the caller. */
static void sealed_nonsense_is_refused(void **state)
{
    (void)state;
    struct shm nonsense, receiver = {.base = NULL};
    struct segment_reader reader;
    struct worker_segment_reader watcher;
    assert_int_equal(shm_create("nonsense", worker_segment_bytes(), &nonsense, NULL), STATUS_OK);
    memset(nonsense.base, 0xff, 4096);
    int copy = dup(nonsense.descriptor);
    assert_int_equal(coordinator_segment_open(copy, &receiver, &reader, NULL), STATUS_MISMATCH);
    assert_int_equal(worker_segment_accept(copy, &receiver, &watcher, NULL), STATUS_MISMATCH);
    assert_null(receiver.base);
    assert_true(fcntl(copy, F_GETFD) >= 0);
    close(copy);
    shm_close(&nonsense);
}

/* A header that is right, in memory that is cut short or not sealed. */
static void short_or_unsealed_segments_are_refused(void **state)
{
    (void)state;
    struct segment_extents extents = extents_of(4, 100);
    uint64_t bytes = coordinator_segment_bytes(&extents);
    for (int cut = 0; cut <= 1; cut++) {
        int descriptor = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_true(descriptor >= 0);
        assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
        void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        assert_ptr_not_equal(memory, MAP_FAILED);
        struct segment_writer writer;
        segment_writer_format(&writer, memory, &extents, &identity);
        if (cut == 1) {
            assert_int_equal(ftruncate(descriptor, (off_t)bytes - 4096), 0);
            assert_int_equal(fcntl(descriptor, F_ADD_SEALS,
                                   F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                             0);
        }
        struct shm receiver;
        struct segment_reader reader;
        struct reason reason;
        assert_int_equal(
            coordinator_segment_open(descriptor, &receiver, &reader, reason_init(&reason)),
            STATUS_BAD_MESSAGE);
        assert_non_null(strstr(reason.storage, cut == 1 ? "inconsistent" : "seals"));
        assert_int_equal(munmap(memory, (size_t)bytes), 0);
        close(descriptor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_goes_through_a_descriptor),
        cmocka_unit_test(impossible_extents_are_refused),
        cmocka_unit_test(sealed_nonsense_is_refused),
        cmocka_unit_test(short_or_unsealed_segments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
