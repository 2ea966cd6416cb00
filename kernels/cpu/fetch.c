#include "kernels/cpu/fetch.h"

#include <stdbool.h>

/* A chunk of a prompt of more rows than these reads the same keys again and again. */
enum { SEQUENCE_ROWS_MAX = 8 };

/* Whether the row is the last one of its sequence, which sees all keys of the others (they lie next
 * to each other), and the sequence is worth it. */
static bool fetched(const struct kv_reads *reads, uint32_t row)
{
    const uint32_t *slots = reads->places.slots;
    bool last = row + 1 == reads->rows || slots[row + 1] != slots[row];
    return last && (row < SEQUENCE_ROWS_MAX || slots[row - SEQUENCE_ROWS_MAX] != slots[row]);
}

static uint32_t blocks_of_row(const struct kv_reads *reads, uint32_t row)
{
    return kv_blocks_for(&reads->kv.geometry, reads->places.positions[row] + 1);
}

uint32_t fetch_count(const struct kv_reads *reads, uint64_t bytes_max)
{
    struct kv_geometry layer = reads->kv.geometry;
    layer.layers = 1;
    uint64_t most = kv_pool_blocks(&layer, bytes_max), count = 0;
    most = most < FETCH_PIECES_MAX ? most : FETCH_PIECES_MAX;
    for (uint32_t row = 0; row < reads->rows && count <= most; row++)
        count += fetched(reads, row) ? blocks_of_row(reads, row) : 0;
    return count <= most ? (uint32_t)count : 0;
}

uint32_t fetch_list(const struct kv_reads *reads, uint32_t first, uint32_t count,
                    const uint8_t **pieces)
{
    const struct kv_geometry *g = &reads->kv.geometry;
    const struct kv_view *kv = &reads->kv;
    uint32_t found = 0, before = 0;
    for (uint32_t row = 0; row < reads->rows && before < first + count; row++) {
        if (!fetched(reads, row))
            continue;
        uint64_t entry =
            kv_table_index(g, kv->logical_blocks, reads->places.slots[row], reads->layer, 0);
        uint32_t blocks = blocks_of_row(reads, row);
        uint32_t from = first > before ? first - before : 0, left = first + count - before;
        for (uint32_t block = from; block < blocks && block < left; block++) {
            int32_t place = kv->table[entry + block];
            if (place >= 0)
                pieces[found++] = (const uint8_t *)kv->pool + kv_block_offset(g, (uint32_t)place);
        }
        before += blocks;
    }
    return found;
}
