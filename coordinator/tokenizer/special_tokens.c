#include "coordinator/tokenizer/special_tokens.h"

#include "common/check.h"

/* Children of a node hang in a list: few bytes follow any given beginning of a special token. */
struct special_node {
    uint32_t first_child, next_sibling; /* 0: none, since the root is nobody's child */
    uint32_t special;                   /* index + 1 of the token that ends here; 0: none */
    uint8_t byte;
};

static uint32_t child_of(const struct special_node *nodes, uint32_t node, uint8_t byte)
{
    uint32_t child = nodes[node].first_child;
    while (child != 0 && nodes[child].byte != byte)
        child = nodes[child].next_sibling;
    return child;
}

enum status special_tokens_init(struct special_tokens *specials,
                                const struct vocabulary *vocabulary)
{
    *specials = (struct special_tokens){.vocabulary = vocabulary};
    size_t nodes_max = 1;
    for (uint32_t i = 0; i < vocabulary->special_count; i++)
        nodes_max += vocabulary->specials[i].text.length;
    enum status status = arena_init(&specials->arena, nodes_max * sizeof(struct special_node));
    if (status != STATUS_OK)
        return status;
    struct special_node *nodes =
        arena_alloc_array(&specials->arena, nodes_max, sizeof(struct special_node));
    uint32_t used = 1;
    for (uint32_t i = 0; i < vocabulary->special_count; i++) {
        struct byte_view text = vocabulary->specials[i].text;
        specials->begins[(uint8_t)text.bytes[0]] = true;
        uint32_t node = 0;
        for (size_t at = 0; at < text.length; at++) {
            uint32_t child = child_of(nodes, node, (uint8_t)text.bytes[at]);
            if (child == 0) {
                child = used++;
                nodes[child].byte = (uint8_t)text.bytes[at];
                nodes[child].next_sibling = nodes[node].first_child;
                nodes[node].first_child = child;
            }
            node = child;
        }
        nodes[node].special = i + 1;
    }
    CHECK(used <= nodes_max);
    specials->nodes = nodes;
    return STATUS_OK;
}

void special_tokens_free(struct special_tokens *specials)
{
    arena_free(&specials->arena);
    *specials = (struct special_tokens){0};
}

/* Longest token that begins at `at`: its index + 1, or 0. */
static uint32_t longest_at(const struct special_tokens *specials, struct byte_view text, size_t at)
{
    uint32_t longest = 0, node = 0;
    for (; at < text.length; at++) {
        node = child_of(specials->nodes, node, (uint8_t)text.bytes[at]);
        if (node == 0)
            break;
        if (specials->nodes[node].special != 0)
            longest = specials->nodes[node].special;
    }
    return longest;
}

struct special_match special_tokens_next(const struct special_tokens *specials,
                                         struct byte_view text, size_t from,
                                         enum special_tokens_use use)
{
    size_t at = from;
    while (at < text.length) {
        uint32_t found =
            specials->begins[(uint8_t)text.bytes[at]] ? longest_at(specials, text, at) : 0;
        if (found == 0) {
            at++;
            continue;
        }
        const struct vocabulary_special *special = &specials->vocabulary->specials[found - 1];
        size_t end = at + special->text.length;
        if (use == SPECIAL_TOKENS_PARSED || !special->control)
            return (struct special_match){.begin = at, .end = end, .token = special->token};
        at = end;
    }
    return (struct special_match){text.length, text.length, VOCABULARY_NO_TOKEN};
}
