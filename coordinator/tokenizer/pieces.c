#include "coordinator/tokenizer/pieces.h"

#include "common/check.h"

static enum status add_piece(struct pieces *pieces, const struct vocabulary *vocabulary,
                             struct bpe_scratch *scratch, uint32_t token)
{
    struct byte_view bytes = vocabulary_token_bytes(vocabulary, token);
    if (bytes.length == 0 || vocabulary_find(vocabulary, bytes.bytes, bytes.length) != token)
        return STATUS_OK;
    uint32_t merged;
    struct token_list list = {.tokens = &merged, .capacity = 1};
    enum status status = bpe_encode(vocabulary, scratch, bytes, &list);
    if (status == STATUS_TOO_LARGE) /* more than one token */
        return STATUS_OK;
    if (status != STATUS_OK || list.count == 0 || merged != token)
        return status;
    status = byte_table_add(&pieces->table, bytes.bytes, (uint32_t)bytes.length, token);
    CHECK(status == STATUS_OK);
    return STATUS_OK;
}

enum status pieces_init(struct pieces *pieces, const struct vocabulary *vocabulary,
                        struct bpe_scratch *scratch)
{
    *pieces = (struct pieces){0};
    enum status status = arena_init(&pieces->arena, byte_table_bytes(vocabulary->token_count));
    if (status == STATUS_OK)
        status = byte_table_init(&pieces->table, &pieces->arena, vocabulary->token_count);
    for (uint32_t token = 0; token < vocabulary->token_count && status == STATUS_OK; token++)
        status = add_piece(pieces, vocabulary, scratch, token);
    if (status != STATUS_OK)
        pieces_free(pieces);
    return status;
}

void pieces_free(struct pieces *pieces)
{
    arena_free(&pieces->arena);
    *pieces = (struct pieces){0};
}
