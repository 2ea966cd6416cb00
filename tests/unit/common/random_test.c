#include "common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Known answers of the published generator (Random123's test vectors). */
static void philox_has_the_published_words(void **state)
{
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], words[4];
    } CASES[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {UINT64_C(0x299f31d0a4093822),
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const uint32_t *c = CASES[i].counter;
        struct philox_block block = philox(CASES[i].key, c[0], c[1], c[2], c[3]);
        for (int word = 0; word < 4; word++)
            assert_int_equal(block.word[word], CASES[i].words[word]);
    }
}

static void splitmix_has_the_published_words(void **state)
{
    (void)state;
    struct random random = {.state = 0};
    assert_int_equal(random_next(&random), UINT64_C(0xe220a8397b1dcdaf));
    assert_int_equal(random_next(&random), UINT64_C(0x6e789e6aa1b965f4));
    assert_int_equal(random_next(&random), UINT64_C(0x06c45d188009454f));
}

static void below_stays_below_and_reaches_all(void **state)
{
    (void)state;
    struct random random = {.state = 20261130};
    uint32_t counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint32_t drawn = random_below(&random, 7);
        assert_true(drawn < 7);
        counts[drawn]++;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(counts[i], 9500, 10500); /* five standard deviations */
    assert_int_equal(random_below(&random, 1), 0);
    uint32_t high = 0;
    for (int i = 0; i < 64; i++)
        high |= random_below(&random, UINT64_C(1) << 32);
    assert_int_equal(high >> 31, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_has_the_published_words),
        cmocka_unit_test(splitmix_has_the_published_words),
        cmocka_unit_test(below_stays_below_and_reaches_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
