#include "coordinator/tokenizer/bpe.h"

#include "common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum {
    LETTERS = 4,
    MERGES = 60,
    TOKENS = LETTERS + MERGES,
    TEXT_BYTES = 24,
    PIECE_BYTES_MAX = 4000
};

/* A vocabulary over the letters a to d with random merges. */
struct model {
    char texts[TOKENS][TEXT_BYTES + 1];
    char merge_texts[MERGES][2 * TEXT_BYTES + 2];
    uint32_t lefts[MERGES], rights[MERGES], results[MERGES];
    uint32_t token_count, merge_count;
    struct vocabulary vocabulary;
};

static uint32_t find_text(const struct model *model, const char *text)
{
    for (uint32_t i = 0; i < model->token_count; i++)
        if (strcmp(model->texts[i], text) == 0)
            return i;
    return VOCABULARY_NO_TOKEN;
}

static bool has_merge(const struct model *model, uint32_t left, uint32_t right)
{
    for (uint32_t i = 0; i < model->merge_count; i++)
        if (model->lefts[i] == left && model->rights[i] == right)
            return true;
    return false;
}

/* Another way to join two tokens to one that is there already, if chance finds one. */
static void draw_other_way(const struct model *model, struct random *random, uint32_t *left,
                           uint32_t *right)
{
    const char *text = model->texts[random_below(random, model->token_count)];
    char head[TEXT_BYTES + 1];
    size_t cut = 1 + random_below(random, strlen(text));
    memcpy(head, text, cut);
    head[cut] = '\0';
    uint32_t head_token = find_text(model, head), tail_token = find_text(model, text + cut);
    if (head_token != VOCABULARY_NO_TOKEN && tail_token != VOCABULARY_NO_TOKEN) {
        *left = head_token;
        *right = tail_token;
    }
}

/* Adds merges at random; `unique`: none whose result is there already. */
static void draw_merges(struct model *model, struct random *random, bool unique)
{
    for (int tries = 0; tries < 20 * MERGES && model->merge_count < MERGES; tries++) {
        uint32_t left = random_below(random, model->token_count);
        uint32_t right = random_below(random, model->token_count);
        if (!unique)
            draw_other_way(model, random, &left, &right);
        if (strlen(model->texts[left]) + strlen(model->texts[right]) > TEXT_BYTES ||
            has_merge(model, left, right))
            continue;
        char joined[2 * TEXT_BYTES + 1];
        (void)snprintf(joined, sizeof joined, "%s%s", model->texts[left], model->texts[right]);
        uint32_t result = find_text(model, joined);
        if (result != VOCABULARY_NO_TOKEN && unique)
            continue;
        if (result == VOCABULARY_NO_TOKEN) {
            result = model->token_count++;
            memcpy(model->texts[result], joined, strlen(joined) + 1);
        }
        uint32_t rank = model->merge_count++;
        model->lefts[rank] = left;
        model->rights[rank] = right;
        model->results[rank] = result;
        size_t left_length = strlen(model->texts[left]);
        memcpy(model->merge_texts[rank], model->texts[left], left_length);
        model->merge_texts[rank][left_length] = ' ';
        memcpy(model->merge_texts[rank] + left_length + 1, model->texts[right],
               strlen(model->texts[right]));
    }
}

static void model_open(struct model *model, uint64_t seed, bool unique)
{
    struct random random = {seed};
    memset(model, 0, sizeof *model);
    for (uint32_t i = 0; i < LETTERS; i++)
        model->texts[model->token_count++][0] = (char)('a' + i);
    draw_merges(model, &random, unique);
    struct byte_view tokens[TOKENS], merges[MERGES];
    uint8_t types[TOKENS];
    for (uint32_t i = 0; i < model->token_count; i++) {
        tokens[i] = (struct byte_view){model->texts[i], strlen(model->texts[i])};
        types[i] = TOKEN_TYPE_NORMAL;
    }
    for (uint32_t i = 0; i < model->merge_count; i++)
        merges[i] = (struct byte_view){model->merge_texts[i], strlen(model->merge_texts[i])};
    struct vocabulary_source source = {.tokens = tokens,
                                       .types = types,
                                       .merges = merges,
                                       .token_count = model->token_count,
                                       .merge_count = model->merge_count,
                                       .begin_token = VOCABULARY_NO_TOKEN,
                                       .end_token = VOCABULARY_NO_TOKEN,
                                       .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                       .end_of_message_token = VOCABULARY_NO_TOKEN};
    struct reason reason;
    if (vocabulary_init(&model->vocabulary, &source, reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
}

/* The queue of the reference, kept as a plain list: smallest (rank, place) first, a candidate is
 * stale unless the pair at its place has the same result. */
struct candidate {
    uint32_t rank, place;
};

struct queue {
    struct candidate items[3 * PIECE_BYTES_MAX];
    size_t count;
};

static void queue_pair(const struct model *model, struct queue *queue, const uint32_t *tokens,
                       const uint32_t *next, uint32_t place)
{
    if (next[place] == UINT32_MAX)
        return;
    for (uint32_t rank = 0; rank < model->merge_count; rank++)
        if (model->lefts[rank] == tokens[place] && model->rights[rank] == tokens[next[place]])
            queue->items[queue->count++] = (struct candidate){rank, place};
}

static struct candidate take_smallest(struct queue *queue)
{
    size_t best = 0;
    for (size_t i = 1; i < queue->count; i++) {
        struct candidate a = queue->items[i], b = queue->items[best];
        if (a.rank < b.rank || (a.rank == b.rank && a.place < b.place))
            best = i;
    }
    struct candidate taken = queue->items[best];
    queue->items[best] = queue->items[--queue->count];
    return taken;
}

static uint32_t result_of(const struct model *model, uint32_t left, uint32_t right)
{
    for (uint32_t rank = 0; rank < model->merge_count; rank++)
        if (model->lefts[rank] == left && model->rights[rank] == right)
            return model->results[rank];
    return UINT32_MAX;
}

static size_t slow_encode(const struct model *model, const char *piece, size_t length,
                          uint32_t *out)
{
    static uint32_t tokens[PIECE_BYTES_MAX], next[PIECE_BYTES_MAX], previous[PIECE_BYTES_MAX];
    static struct queue queue;
    queue.count = 0;
    for (uint32_t i = 0; i < length; i++) {
        tokens[i] = (uint32_t)(piece[i] - 'a');
        previous[i] = i - 1; /* UINT32_MAX for the first */
        next[i] = i + 1 < length ? i + 1 : UINT32_MAX;
    }
    for (uint32_t i = 0; i < length; i++)
        queue_pair(model, &queue, tokens, next, i);
    while (queue.count > 0) {
        struct candidate top = take_smallest(&queue);
        uint32_t at = top.place, right = next[at];
        if (tokens[at] == UINT32_MAX || right == UINT32_MAX ||
            result_of(model, tokens[at], tokens[right]) != model->results[top.rank])
            continue;
        tokens[at] = model->results[top.rank];
        tokens[right] = UINT32_MAX;
        next[at] = next[right];
        if (next[at] != UINT32_MAX)
            previous[next[at]] = at;
        if (previous[at] != UINT32_MAX)
            queue_pair(model, &queue, tokens, next, previous[at]);
        queue_pair(model, &queue, tokens, next, at);
    }
    size_t count = 0;
    for (uint32_t at = 0; at != UINT32_MAX; at = next[at])
        out[count++] = tokens[at];
    return count;
}

/* Whether two merges have the same result. */
static bool has_result_twice(const struct model *model)
{
    for (uint32_t i = 0; i < model->merge_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (model->results[i] == model->results[j])
                return true;
    return false;
}

static void compare(const struct model *model, struct random *random, size_t length)
{
    static struct bpe_scratch scratch;
    static char piece[PIECE_BYTES_MAX];
    static uint32_t expected[PIECE_BYTES_MAX], tokens[PIECE_BYTES_MAX];
    uint32_t letters = 1 + random_below(random, LETTERS);
    for (size_t i = 0; i < length; i++)
        piece[i] = (char)('a' + random_below(random, letters));
    struct token_list list = {.tokens = tokens, .capacity = length};
    struct byte_view view = {piece, length};
    size_t count = slow_encode(model, piece, length, expected);
    assert_int_equal(bpe_encode(&model->vocabulary, &scratch, view, &list), STATUS_OK);
    assert_int_equal(list.count, count);
    assert_memory_equal(tokens, expected, count * sizeof tokens[0]);
    list = (struct token_list){.tokens = tokens, .capacity = count - 1};
    assert_int_equal(bpe_encode(&model->vocabulary, &scratch, view, &list), STATUS_TOO_LARGE);
    assert_int_equal(list.count, 0);
}

/* Both regimes and the borders between them, with unique results and with others. */
static void merges_like_the_reference(void **state)
{
    (void)state;
    static struct model model;
    enum { MODELS = 40 };
    uint32_t ambiguous = 0;
    for (uint64_t seed = 0; seed < MODELS; seed++) {
        struct random random = {seed + 1000};
        model_open(&model, seed, seed % 2 == 0);
        ambiguous += has_result_twice(&model);
        for (size_t length = 1; length <= 70; length++)
            compare(&model, &random, length);
        compare(&model, &random, BPE_SHORT_BYTES_MAX);
        compare(&model, &random, BPE_SHORT_BYTES_MAX + 1);
        compare(&model, &random, BPE_SCRATCH_BYTES_MAX);
        compare(&model, &random, BPE_SCRATCH_BYTES_MAX + 1);
        vocabulary_free(&model.vocabulary);
    }
    assert_true(ambiguous > MODELS / 4);
}

/* The neighbours of a byte without a token become neighbours. */
static void bytes_without_a_token_are_left_out(void **state)
{
    (void)state;
    static struct bpe_scratch scratch;
    struct byte_view tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}}, merges[] = {{"a b", 3}};
    uint8_t types[] = {TOKEN_TYPE_NORMAL, TOKEN_TYPE_NORMAL, TOKEN_TYPE_NORMAL};
    struct vocabulary_source source = {.tokens = tokens,
                                       .types = types,
                                       .merges = merges,
                                       .token_count = 3,
                                       .merge_count = 1,
                                       .begin_token = VOCABULARY_NO_TOKEN,
                                       .end_token = VOCABULARY_NO_TOKEN,
                                       .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                       .end_of_message_token = VOCABULARY_NO_TOKEN};
    struct vocabulary vocabulary;
    assert_int_equal(vocabulary_init(&vocabulary, &source, NULL), STATUS_OK);
    static char piece[BPE_SCRATCH_BYTES_MAX + 3];
    static const size_t lengths[] = {3, BPE_SHORT_BYTES_MAX + 3, BPE_SCRATCH_BYTES_MAX + 3};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(piece, 'x', sizeof piece);
        piece[0] = 'a';
        piece[lengths[i] - 1] = 'b';
        uint32_t out[2];
        struct token_list list = {.tokens = out, .capacity = 2};
        assert_int_equal(
            bpe_encode(&vocabulary, &scratch, (struct byte_view){piece, lengths[i]}, &list),
            STATUS_OK);
        assert_int_equal(list.count, 1);
        assert_int_equal(out[0], 2);
        list.count = 0;
        assert_int_equal(
            bpe_encode(&vocabulary, &scratch, (struct byte_view){piece + 1, lengths[i] - 2}, &list),
            STATUS_OK);
        assert_int_equal(list.count, 0);
    }
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_like_the_reference),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
