/* The sampler: sets against an independent reference, distribution, reproducibility, independence
 * of everything but (logits, parameters, position). */
#define XXH_INLINE_ALL
#include "common/check.h"
#include "common/random.h"
#include "kernels/comparison.h"
#include "kernels/subjects.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>

#define SAMPLER_CPU_1 UINT64_C(0xd2bb8daf3011c570)

enum { VOCABULARY = 1003, SMALL = 12, ROWS_MAX = 4096 };

static const struct sampling greedy = {.seed = 1, .temperature = 0, .top_p = 1};

struct drawn {
    uint32_t tokens[ROWS_MAX], errors[ROWS_MAX];
    float logprobs[ROWS_MAX];
};

/* Rows to draw, in host memory. */
struct batch {
    const float *logits; /* [row][columns] */
    const struct sampling *sampling;
    const uint32_t *positions;
    uint32_t rows, columns, vocabulary;
};

static void draw_rows(struct backend *backend, const struct batch *batch, struct drawn *drawn)
{
    uint32_t rows = batch->rows;
    uint64_t words = rows * sizeof(uint32_t);
    uint64_t bytes = (uint64_t)rows * batch->columns * sizeof(float);
    struct sample_args args = {
        .logits = subject_upload(backend, batch->logits, bytes),
        .sampling = subject_upload(backend, batch->sampling, rows * sizeof *batch->sampling),
        .positions = subject_upload(backend, batch->positions, words),
        .rows = rows,
        .columns = batch->columns,
        .vocabulary = batch->vocabulary,
        .tokens = subject_memory(backend, words),
        .logprobs = subject_memory(backend, words),
        .row_errors = subject_memory(backend, words)};
    backend->operations->sample(backend, &args);
    subject_download(backend, drawn->tokens, args.tokens, words);
    subject_download(backend, drawn->logprobs, args.logprobs, words);
    subject_download(backend, drawn->errors, args.row_errors, words);
    backend->operations->memory_release(backend, (void *)(uintptr_t)args.logits, bytes);
}

/* The same logits `rows` times, positions 0.. */
static void draw_many(struct backend *backend, const float *logits, uint32_t vocabulary,
                      struct sampling sampling, uint32_t rows, struct drawn *drawn)
{
    float *all = malloc((size_t)rows * vocabulary * sizeof *all);
    struct sampling *samplings = malloc(rows * sizeof *samplings);
    uint32_t *positions = malloc(rows * sizeof *positions);
    CHECK(all != NULL && samplings != NULL && positions != NULL);
    for (uint32_t row = 0; row < rows; row++) {
        memcpy(all + (size_t)row * vocabulary, logits, vocabulary * sizeof *all);
        samplings[row] = sampling;
        positions[row] = row;
    }
    struct batch batch = {all, samplings, positions, rows, vocabulary, vocabulary};
    draw_rows(backend, &batch, drawn);
    free(positions);
    free(samplings);
    free(all);
}

/* Runs `check` on every subject. */
static void on_all(void (*check)(struct backend *backend))
{
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        check(backend);
        backend_close(backend);
    }
}

/* --- greedy, log-probabilities, strange logits ------------------------------------------------ */

static void check_greedy(struct backend *backend)
{
    static struct drawn drawn;
    float logits[VOCABULARY];
    uint32_t position = 3;
    fill_values(logits, VOCABULARY, 5);
    for (uint32_t best = 0; best < VOCABULARY; best += 71) {
        float kept = logits[best];
        logits[best] = 50.0f;
        logits[VOCABULARY - 1] = best % 2 == 0 ? 50.0f : 49.9f; /* a tie goes to the lowest id */
        draw_rows(backend, &(struct batch){logits, &greedy, &position, 1, VOCABULARY, VOCABULARY},
                  &drawn);
        assert_int_equal(drawn.tokens[0], best);
        double sum = 0;
        for (uint32_t i = 0; i < VOCABULARY; i++)
            sum += exp((double)logits[i] - 50.0);
        struct expectation expected = {-log(sum), 4e-7};
        assert_close("logprob", drawn.logprobs, &expected, 1);
        assert_int_equal(drawn.errors[0], 0);
        logits[best] = kept;
    }
}

static void greedy_takes_the_lowest_of_the_largest(void **state)
{
    (void)state;
    on_all(check_greedy);
}

static void check_strange(struct backend *backend)
{
    static const float strange[] = {NAN, -NAN, INFINITY, -INFINITY};
    static struct drawn drawn;
    static float logits[3 * VOCABULARY];
    struct sampling samplings[3] = {greedy, {.seed = 4, .temperature = 1, .top_p = 0.9f}, greedy};
    uint32_t positions[3] = {1, 2, 3};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        for (uint32_t place = 0; place < VOCABULARY; place += 334) {
            fill_values(logits, 3 * VOCABULARY, 6);
            logits[VOCABULARY + place] = strange[i];
            draw_rows(backend,
                      &(struct batch){logits, samplings, positions, 3, VOCABULARY, VOCABULARY},
                      &drawn);
            assert_int_equal(drawn.errors[0], 0);
            assert_int_equal(drawn.errors[1], ROW_ERROR_LOGITS);
            assert_int_equal(drawn.tokens[1], 0);
            assert_int_equal(drawn.errors[2], 0);
        }
    }
}

static void strange_logits_are_an_error_of_their_row(void **state)
{
    (void)state;
    on_all(check_strange);
}

static void check_vocabulary_end(struct backend *backend)
{
    static struct drawn drawn;
    float logits[2 * SMALL];
    struct sampling samplings[2] = {greedy, {.seed = 9, .temperature = 1, .top_p = 1}};
    uint32_t positions[2] = {0, 0};
    for (uint32_t i = 0; i < 2 * SMALL; i++)
        logits[i] =
            i % SMALL < SMALL - 3 ? 0.0f : NAN; /* padding of the vocabulary: never looked at */
    draw_rows(backend, &(struct batch){logits, samplings, positions, 2, SMALL, SMALL - 3}, &drawn);
    for (int row = 0; row < 2; row++) {
        struct expectation expected = {-log(SMALL - 3), 1e-6};
        assert_true(drawn.tokens[row] < SMALL - 3);
        assert_int_equal(drawn.errors[row], 0);
        assert_close("logprob", &drawn.logprobs[row], &expected, 1);
    }
}

static void ids_beyond_the_vocabulary_do_not_count(void **state)
{
    (void)state;
    on_all(check_vocabulary_end);
}

/* --- the sets of top_k, top_p and min_p ------------------------------------------------------- */

struct ranked {
    float logit;
    uint32_t id;
};

static int by_logit_down(const void *a, const void *b)
{
    float x = ((const struct ranked *)a)->logit, y = ((const struct ranked *)b)->logit;
    return (x < y) - (x > y);
}

/* The kept set by sorting, in double. `margin` gets how close a decision was, so that the caller
 * can avoid coin tosses. */
static void reference_set(const float *logits, uint32_t count, const struct sampling *sampling,
                          bool *kept, double *margin)
{
    struct ranked ranked[VOCABULARY];
    double p[VOCABULARY], total = 0, sum = 0;
    uint32_t left = count;
    *margin = 1;
    for (uint32_t i = 0; i < count; i++)
        ranked[i] = (struct ranked){logits[i], i};
    qsort(ranked, count, sizeof *ranked, by_logit_down);
    for (uint32_t i = 0; i < count; i++)
        p[i] = exp(((double)ranked[i].logit - (double)ranked[0].logit) /
                   (double)sampling->temperature);
    if (sampling->top_k > 0 && sampling->top_k < count) {
        left = sampling->top_k;
        while (left < count && ranked[left].logit == ranked[left - 1].logit)
            left++;
    }
    for (uint32_t i = 0; i < left; i++)
        total += p[i];
    if (sampling->top_p < 1.0f) {
        uint32_t i = 0;
        while (i < left) {
            float group = ranked[i].logit;
            while (i < left && ranked[i].logit == group)
                sum += p[i++];
            *margin = fmin(*margin, fabs(sum / total - (double)sampling->top_p));
            if (sum >= total * (double)sampling->top_p)
                break;
        }
        left = i;
    }
    memset(kept, 0, count * sizeof *kept);
    for (uint32_t i = 0; i < left; i++) {
        if (sampling->min_p > 0)
            *margin = fmin(*margin, fabs(p[i] - (double)sampling->min_p));
        kept[ranked[i].id] = p[i] >= (double)sampling->min_p;
    }
}

/* Logits in steps of 1/4, so that there are many ties. */
static void tied_logits(float *logits, uint32_t count, uint64_t seed)
{
    struct random random = {seed};
    for (uint32_t i = 0; i < count; i++)
        logits[i] = (float)random_below(&random, 24) * 0.25f - 3.0f;
}

static const struct sampling set_ways[] = {
    {.temperature = 1.0f, .top_p = 1.0f, .top_k = 1},
    {.temperature = 1.0f, .top_p = 1.0f, .top_k = 3},
    {.temperature = 0.7f, .top_p = 0.5f},
    {.temperature = 1.3f, .top_p = 0.05f},
    {.temperature = 0.9f, .top_p = 0.95f, .top_k = 5},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.4f},
    {.temperature = 2.0f, .top_p = 0.8f, .min_p = 0.3f, .top_k = 9},
    {.temperature = 1.0f, .top_p = 1.0f, .top_k = 4000000},
};

/* Every drawn token is in the set, and with 1,000 draws of 12 tokens each member is drawn. */
static void check_sets(struct backend *backend)
{
    static struct drawn drawn;
    uint32_t compared = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        float logits[SMALL];
        tied_logits(logits, SMALL, seed);
        for (size_t way = 0; way < sizeof set_ways / sizeof *set_ways; way++) {
            struct sampling sampling = set_ways[way];
            bool kept[SMALL], seen[SMALL] = {false};
            double margin;
            sampling.seed = seed;
            reference_set(logits, SMALL, &sampling, kept, &margin);
            if (margin < 1e-6)
                continue;
            compared++;
            draw_many(backend, logits, SMALL, sampling, 1000, &drawn);
            for (uint32_t row = 0; row < 1000; row++)
                seen[drawn.tokens[row]] = true;
            for (uint32_t i = 0; i < SMALL; i++) {
                assert_true(kept[i] || !seen[i]);
                double gap = ((double)logits[i] - 3.0) / (double)sampling.temperature;
                assert_true(seen[i] || !kept[i] || gap < -4.0); /* rare ones may be missed */
            }
        }
    }
    assert_true(compared >= 18);
}

static void sets_equal_a_sorting_reference(void **state)
{
    (void)state;
    on_all(check_sets);
}

/* Of a large vocabulary: no token outside of the set in 3,000 draws. */
static void check_large_sets(struct backend *backend)
{
    static struct drawn drawn;
    float logits[VOCABULARY];
    fill_values(logits, VOCABULARY, 12);
    for (size_t way = 0; way < sizeof set_ways / sizeof *set_ways; way++) {
        struct sampling sampling = set_ways[way];
        bool kept[VOCABULARY];
        double margin;
        sampling.seed = way;
        reference_set(logits, VOCABULARY, &sampling, kept, &margin);
        assert_true(margin > 1e-9);
        draw_many(backend, logits, VOCABULARY, sampling, 300, &drawn);
        for (uint32_t row = 0; row < 300; row++)
            assert_true(kept[drawn.tokens[row]]);
    }
}

static void large_vocabularies_keep_the_set(void **state)
{
    (void)state;
    on_all(check_large_sets);
}

/* --- distribution ----------------------------------------------------------------------------- */

/* Chi-square of 4,096 draws against the softmax of the kept set, 11 degrees of freedom at
 * most: 31.3 has one chance in 1,000, and the seeds are fixed. */
static void check_distribution(struct backend *backend)
{
    static const struct sampling ways[] = {
        {.seed = 11, .temperature = 1.0f, .top_p = 1.0f},
        {.seed = 12, .temperature = 0.6f, .top_p = 1.0f},
        {.seed = 13, .temperature = 1.0f, .top_p = 0.9f},
        {.seed = 14, .temperature = 1.5f, .top_p = 1.0f, .top_k = 6},
        {.seed = 15, .temperature = 1.0f, .top_p = 1.0f, .min_p = 0.2f},
    };
    static struct drawn drawn;
    float logits[SMALL];
    for (uint32_t i = 0; i < SMALL; i++)
        logits[i] = (float)(i * 7 % SMALL) * 0.21f;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        bool kept[SMALL];
        double margin, total = 0, chi_square = 0, counts[SMALL] = {0};
        reference_set(logits, SMALL, &ways[way], kept, &margin);
        draw_many(backend, logits, SMALL, ways[way], ROWS_MAX, &drawn);
        for (uint32_t row = 0; row < ROWS_MAX; row++)
            counts[drawn.tokens[row]]++;
        for (uint32_t i = 0; i < SMALL; i++)
            total += kept[i] ? exp((double)logits[i] / (double)ways[way].temperature) : 0;
        for (uint32_t i = 0; i < SMALL; i++) {
            double p = exp((double)logits[i] / (double)ways[way].temperature) / total;
            double difference = counts[i] - ROWS_MAX * p;
            chi_square += kept[i] ? difference * difference / (ROWS_MAX * p) : 0;
        }
        assert_true(chi_square < 31.3);
        assert_true(chi_square > 0.1); /* a too even spread is no chance either */
    }
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    on_all(check_distribution);
}

/* --- reproducibility -------------------------------------------------------------------------- */

enum { MIXED = 24 };

struct mixed {
    float logits[MIXED * VOCABULARY];
    struct sampling samplings[MIXED];
    uint32_t positions[MIXED];
};

static void fill_mixed(struct mixed *mixed)
{
    fill_values(mixed->logits, MIXED * VOCABULARY, 31);
    for (uint32_t row = 0; row < MIXED; row++) {
        mixed->samplings[row] = row % 3 == 0 ? greedy : set_ways[row % 8];
        mixed->samplings[row].seed = row * 1234567 + 1;
        mixed->samplings[row].top_k *= 40;
        mixed->positions[row] = row * row;
    }
}

/* All subjects, all row orders, rows alone: the same tokens and the same bits of the
 * log-probability. */
static void a_row_is_drawn_alike_everywhere(void **state)
{
    static struct mixed mixed, reversed;
    static struct drawn first, drawn;
    bool have_first = false;
    (void)state;
    fill_mixed(&mixed);
    for (uint32_t row = 0; row < MIXED; row++) {
        uint32_t other = MIXED - 1 - row;
        memcpy(reversed.logits + row * VOCABULARY, mixed.logits + other * VOCABULARY,
               VOCABULARY * sizeof(float));
        reversed.samplings[row] = mixed.samplings[other];
        reversed.positions[row] = mixed.positions[other];
    }
    struct batch forward = {mixed.logits, mixed.samplings, mixed.positions,
                            MIXED,        VOCABULARY,      VOCABULARY};
    struct batch backward = {reversed.logits, reversed.samplings, reversed.positions,
                             MIXED,           VOCABULARY,         VOCABULARY};
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        draw_rows(backend, &forward, have_first ? &drawn : &first);
        if (have_first)
            assert_same_bits(subjects[s].name, &drawn, &first, sizeof drawn);
        have_first = true;
        draw_rows(backend, &backward, &drawn);
        for (uint32_t row = 0; row < MIXED; row++) {
            assert_int_equal(drawn.tokens[row], first.tokens[MIXED - 1 - row]);
            assert_same_bits(subjects[s].name, &drawn.logprobs[row],
                             &first.logprobs[MIXED - 1 - row], sizeof(float));
        }
        backend_close(backend);
    }
}

/* Tokens and log-probabilities of version 1: see ARITHMETIC_CPU_1 in operations_test.c. */
static void the_sampler_has_fixed_bits(void **state)
{
    static struct mixed mixed;
    static struct drawn drawn;
    (void)state;
    fill_mixed(&mixed);
    struct batch batch = {mixed.logits, mixed.samplings, mixed.positions,
                          MIXED,        VOCABULARY,      VOCABULARY};
    struct backend *backend = subject_open(&subjects[0]);
    draw_rows(backend, &batch, &drawn);
    backend_close(backend);
    assert_int_equal(XXH3_64bits(&drawn, sizeof drawn), SAMPLER_CPU_1);
}

static void check_seeds(struct backend *backend)
{
    static struct drawn a, b, c;
    float logits[SMALL] = {0};
    struct sampling sampling = {.seed = 42, .temperature = 1, .top_p = 1};
    draw_many(backend, logits, SMALL, sampling, 200, &a);
    draw_many(backend, logits, SMALL, sampling, 200, &b);
    sampling.seed = UINT64_C(42) | UINT64_C(1) << 40; /* the upper half of the seed counts too */
    draw_many(backend, logits, SMALL, sampling, 200, &c);
    uint32_t equal = 0, repeated = 0;
    for (uint32_t row = 0; row < 200; row++) {
        assert_int_equal(a.tokens[row], b.tokens[row]);
        equal += a.tokens[row] == c.tokens[row];
        repeated += row > 0 && a.tokens[row] == a.tokens[row - 1];
    }
    assert_true(equal < 50);    /* 17 of 200 by chance */
    assert_true(repeated < 50); /* each position draws anew */
}

static void seeds_and_positions_key_the_draw(void **state)
{
    (void)state;
    on_all(check_seeds);
}

/* Temperatures at the ends: almost zero acts greedily, very high draws evenly, neither overflows.
 */
static void check_temperatures(struct backend *backend)
{
    static struct drawn drawn;
    float logits[SMALL];
    for (uint32_t i = 0; i < SMALL; i++)
        logits[i] = (float)(i == 7) * 0.001f;
    struct sampling cold = {.seed = 3, .temperature = 1e-38f, .top_p = 0.5f};
    draw_many(backend, logits, SMALL, cold, 50, &drawn);
    for (uint32_t row = 0; row < 50; row++)
        assert_int_equal(drawn.tokens[row], 7);
    logits[2] = -3e38f;
    logits[7] = 3e38f;
    draw_many(backend, logits, SMALL, cold, 50, &drawn);
    for (uint32_t row = 0; row < 50; row++)
        assert_int_equal(drawn.tokens[row], 7);
    for (uint32_t i = 0; i < SMALL; i++)
        logits[i] = (float)i;
    struct sampling hot = {.seed = 3, .temperature = 1e30f, .top_p = 1};
    bool seen[SMALL] = {false};
    draw_many(backend, logits, SMALL, hot, 400, &drawn);
    for (uint32_t row = 0; row < 400; row++)
        seen[drawn.tokens[row]] = true;
    for (uint32_t i = 0; i < SMALL; i++)
        assert_true(seen[i]);
}

static void extreme_temperatures_stay_defined(void **state)
{
    (void)state;
    on_all(check_temperatures);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_the_largest),
        cmocka_unit_test(strange_logits_are_an_error_of_their_row),
        cmocka_unit_test(ids_beyond_the_vocabulary_do_not_count),
        cmocka_unit_test(sets_equal_a_sorting_reference),
        cmocka_unit_test(large_vocabularies_keep_the_set),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_row_is_drawn_alike_everywhere),
        cmocka_unit_test(the_sampler_has_fixed_bits),
        cmocka_unit_test(seeds_and_positions_key_the_draw),
        cmocka_unit_test(extreme_temperatures_stay_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
