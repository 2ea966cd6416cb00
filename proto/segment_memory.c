#include "proto/segment_memory.h"

enum status coordinator_segment_create(const struct segment_extents *extents,
                                       const struct segment_identity *identity, struct shm *out_shm,
                                       struct segment_writer *out_writer, struct text *why)
{
    enum status status = segment_extents_judge(extents, why);
    if (status != STATUS_OK)
        return status;
    struct shm shm;
    status = shm_create("tandem-coordinator", coordinator_segment_bytes(extents), &shm, why);
    if (status != STATUS_OK)
        return status;
    segment_writer_format(out_writer, shm.base, extents, identity);
    *out_shm = shm;
    return STATUS_OK;
}

enum status coordinator_segment_open(int descriptor, struct shm *out_shm,
                                     struct segment_reader *out_reader, struct text *why)
{
    struct shm shm;
    enum status status = shm_open_sealed(descriptor, SEGMENT_HEADER_BYTES,
                                         (uint64_t)LIMIT_SEGMENT_MEBIBYTES << 20, &shm, why);
    if (status != STATUS_OK)
        return status;
    status = segment_reader_open(out_reader, shm.base, shm.bytes, why);
    if (status != STATUS_OK) {
        shm_unmap(&shm);
        return status;
    }
    *out_shm = shm;
    return STATUS_OK;
}

enum status worker_segment_create(const struct segment_identity *identity, struct shm *out_shm,
                                  struct worker_segment_writer *out_writer, struct text *why)
{
    struct shm shm;
    enum status status = shm_create("tandem-worker", worker_segment_bytes(), &shm, why);
    if (status != STATUS_OK)
        return status;
    worker_segment_format(out_writer, shm.base, identity);
    *out_shm = shm;
    return STATUS_OK;
}

enum status worker_segment_accept(int descriptor, struct shm *out_shm,
                                  struct worker_segment_reader *out_reader, struct text *why)
{
    struct shm shm;
    enum status status =
        shm_open_sealed(descriptor, worker_segment_bytes(), worker_segment_bytes(), &shm, why);
    if (status != STATUS_OK)
        return status;
    status = worker_segment_open(out_reader, shm.base, shm.bytes, why);
    if (status != STATUS_OK) {
        shm_unmap(&shm);
        return status;
    }
    *out_shm = shm;
    return STATUS_OK;
}
