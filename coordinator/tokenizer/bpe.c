#include "coordinator/tokenizer/bpe.h"

#include "common/check.h"

#include <string.h>

#define NO_PLACE UINT32_MAX

static void find_pair(const struct vocabulary *vocabulary, const uint32_t *tokens, size_t count,
                      size_t at, struct vocabulary_merge *merges)
{
    merges[at].rank = VOCABULARY_NO_TOKEN;
    if (at + 1 < count)
        (void)vocabulary_find_merge(vocabulary, tokens[at], tokens[at + 1], &merges[at]);
}

/* Merges the pair of lowest rank, the leftmost of equals, until none is left. In place, O(n^2) for
 * small n. */
static size_t merge_short(const struct vocabulary *vocabulary, uint32_t *tokens, size_t count)
{
    struct vocabulary_merge merges[BPE_SHORT_BYTES_MAX];
    for (size_t i = 0; i < count; i++)
        find_pair(vocabulary, tokens, count, i, merges);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (merges[i].rank < merges[best].rank)
                best = i;
        if (merges[best].rank == VOCABULARY_NO_TOKEN)
            break;
        tokens[best] = merges[best].token;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            tokens[i] = tokens[i + 1];
            merges[i] = merges[i + 1];
        }
        find_pair(vocabulary, tokens, count, best, merges);
        if (best > 0)
            find_pair(vocabulary, tokens, count, best - 1, merges);
    }
    return count;
}

static enum status encode_short(const struct vocabulary *vocabulary, struct byte_view piece,
                                struct token_list *out)
{
    uint32_t tokens[BPE_SHORT_BYTES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < piece.length; i++) {
        uint32_t token = vocabulary->byte_tokens[(uint8_t)piece.bytes[i]];
        if (token != VOCABULARY_NO_TOKEN)
            tokens[count++] = token;
    }
    count = merge_short(vocabulary, tokens, count);
    if (count > out->capacity - out->count)
        return STATUS_TOO_LARGE;
    memcpy(out->tokens + out->count, tokens, count * sizeof tokens[0]);
    out->count += count;
    return STATUS_OK;
}

/* Candidates for merging: rank above, place of the left symbol below, so that the smallest number
 * is the pair to merge next. A candidate may have become stale by the time it is on top. */
struct heap {
    uint64_t *items;
    size_t count;
};

static void heap_push(struct heap *heap, uint64_t item)
{
    size_t at = heap->count++;
    while (at > 0 && heap->items[(at - 1) / 2] > item) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = item;
}

static uint64_t heap_pop(struct heap *heap)
{
    uint64_t top = heap->items[0];
    uint64_t item = heap->items[--heap->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->items[child + 1] < heap->items[child])
            child++;
        if (heap->items[child] >= item)
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = item;
    return top;
}

static void push_pair(const struct vocabulary *vocabulary, const struct bpe_symbol *symbols,
                      uint32_t place, struct heap *heap)
{
    struct vocabulary_merge merge;
    uint32_t next = symbols[place].next;
    if (next != NO_PLACE &&
        vocabulary_find_merge(vocabulary, symbols[place].token, symbols[next].token, &merge))
        heap_push(heap, (uint64_t)merge.rank << 32 | place);
}

/* The same result by a heap over a linked list. Each merge takes one candidate and adds at most
 * two, so the heap never holds more than two per symbol. What a pair spans only grows, so a
 * candidate is fresh exactly if the pair at its place still has its rank. */
static size_t merge_long(const struct vocabulary *vocabulary, struct bpe_symbol *symbols,
                         size_t count, struct heap *heap)
{
    for (uint32_t place = 0; place < count; place++)
        push_pair(vocabulary, symbols, place, heap);
    while (heap->count > 0) {
        uint64_t top = heap_pop(heap);
        struct bpe_symbol *left = &symbols[(uint32_t)top];
        if (left->token == VOCABULARY_NO_TOKEN || left->next == NO_PLACE)
            continue;
        struct bpe_symbol *right = &symbols[left->next];
        struct vocabulary_merge merge;
        if (!vocabulary_find_merge(vocabulary, left->token, right->token, &merge) ||
            merge.rank != top >> 32)
            continue;
        left->token = merge.token;
        left->next = right->next;
        right->token = VOCABULARY_NO_TOKEN;
        if (left->next != NO_PLACE)
            symbols[left->next].previous = (uint32_t)top;
        count--;
        if (left->previous != NO_PLACE)
            push_pair(vocabulary, symbols, left->previous, heap);
        push_pair(vocabulary, symbols, (uint32_t)top, heap);
    }
    return count;
}

/* A list of the piece's bytes that have a token. */
static size_t begin_symbols(const struct vocabulary *vocabulary, struct byte_view piece,
                            struct bpe_symbol *symbols)
{
    size_t count = 0;
    for (size_t i = 0; i < piece.length; i++) {
        uint32_t token = vocabulary->byte_tokens[(uint8_t)piece.bytes[i]];
        if (token == VOCABULARY_NO_TOKEN)
            continue;
        symbols[count] = (struct bpe_symbol){.token = token,
                                             .previous = count > 0 ? (uint32_t)count - 1 : NO_PLACE,
                                             .next = (uint32_t)count + 1};
        count++;
    }
    if (count > 0)
        symbols[count - 1].next = NO_PLACE;
    return count;
}

static enum status encode_by_heap(const struct vocabulary *vocabulary, struct byte_view piece,
                                  struct bpe_symbol *symbols, uint64_t *heap_items,
                                  struct token_list *out)
{
    struct heap heap = {.items = heap_items};
    size_t count = begin_symbols(vocabulary, piece, symbols);
    count = merge_long(vocabulary, symbols, count, &heap);
    if (count > out->capacity - out->count)
        return STATUS_TOO_LARGE;
    uint32_t place = 0;
    for (size_t i = 0; i < count; i++) {
        out->tokens[out->count++] = symbols[place].token;
        place = symbols[place].next;
    }
    return STATUS_OK;
}

enum status bpe_encode(const struct vocabulary *vocabulary, struct bpe_scratch *scratch,
                       struct byte_view piece, struct token_list *out)
{
    if (piece.length <= BPE_SHORT_BYTES_MAX)
        return encode_short(vocabulary, piece, out);
    if (piece.length <= BPE_SCRATCH_BYTES_MAX)
        return encode_by_heap(vocabulary, piece, scratch->symbols, scratch->heap, out);
    if (piece.length >= NO_PLACE)
        return STATUS_TOO_LARGE;
    enum { ROUNDING = 128 };
    struct arena arena;
    enum status status = arena_init(
        &arena, piece.length * (sizeof(struct bpe_symbol) + 2 * sizeof(uint64_t)) + ROUNDING);
    if (status != STATUS_OK)
        return status;
    struct bpe_symbol *symbols = arena_alloc_array(&arena, piece.length, sizeof *symbols);
    uint64_t *heap = arena_alloc_array(&arena, 2 * piece.length, sizeof *heap);
    CHECK(symbols != NULL && heap != NULL);
    status = encode_by_heap(vocabulary, piece, symbols, heap, out);
    arena_free(&arena);
    return status;
}
