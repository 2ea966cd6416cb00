#include "common/model_tensor.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

static void names_each_role_in_both_kinds(void **state)
{
    (void)state;
    const struct {
        enum model_tensor role;
        uint32_t layer;
        const char *gguf, *directory; /* NULL: none */
    } cases[] = {
        {MODEL_TENSOR_EMBEDDING, 7, "token_embd.weight", "model.embed_tokens.weight"},
        {MODEL_TENSOR_OUTPUT, 0, "output.weight", "lm_head.weight"},
        {MODEL_TENSOR_ROPE_FACTORS, 0, "rope_freqs.weight", NULL},
        {MODEL_TENSOR_ROTARY_FREQUENCIES, 3, NULL, "model.layers.3.self_attn.rotary_emb.inv_freq"},
        {MODEL_TENSOR_ATTENTION_Q, 11, "blk.11.attn_q.weight",
         "model.layers.11.self_attn.q_proj.weight"},
        {MODEL_TENSOR_FFN_NORM, 511, "blk.511.ffn_norm.weight",
         "model.layers.511.post_attention_layernorm.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *expected[] = {
            [MODEL_FILE_GGUF] = cases[i].gguf,
            [MODEL_FILE_DIRECTORY] = cases[i].directory,
        };
        for (enum model_file_kind kind = MODEL_FILE_GGUF; kind < MODEL_FILE_KIND_COUNT; kind++) {
            char name[MODEL_TENSOR_NAME_BYTES] = "untouched";
            bool named = model_tensor_name(kind, cases[i].role, cases[i].layer, name);
            assert_int_equal(named, expected[kind] != NULL);
            assert_string_equal(name, named ? expected[kind] : "untouched");
            if (named)
                assert_true(model_tensor_known(kind, 512, name));
        }
    }
}

static void every_role_has_a_rule_and_names_of_its_own(void **state)
{
    (void)state;
    for (enum model_file_kind kind = MODEL_FILE_GGUF; kind < MODEL_FILE_KIND_COUNT; kind++)
        for (enum model_tensor a = MODEL_TENSOR_EMBEDDING; a < MODEL_TENSOR_COUNT; a++) {
            const struct model_tensor_rule *rule = model_tensor_rule(a);
            assert_true(rule->columns != MODEL_EXTENT_NONE);
            assert_int_equal(rule->vector, rule->rows == MODEL_EXTENT_NONE);
            for (enum model_tensor b = MODEL_TENSOR_EMBEDDING; b < a; b++) {
                char left[MODEL_TENSOR_NAME_BYTES], right[MODEL_TENSOR_NAME_BYTES];
                if (model_tensor_name(kind, a, 1, left) && model_tensor_name(kind, b, 1, right))
                    assert_string_not_equal(left, right);
            }
        }
}

static void knows_no_other_name(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        "model.layers.2.mlp.up_proj.weight", /* beyond the layers */
        "model.layers.01.mlp.up_proj.weight",
        "model.layers.x.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.bias",
        "model.layers.99999999999999999999.mlp.up_proj.weight",
        "blk.1.ffn_up.weight",
        "lm_head.weight.more",
        "rope_freqs.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_false(model_tensor_known(MODEL_FILE_DIRECTORY, 2, names[i]));
    assert_true(model_tensor_known(MODEL_FILE_DIRECTORY, 2, "model.layers.1.mlp.up_proj.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_each_role_in_both_kinds),
        cmocka_unit_test(every_role_has_a_rule_and_names_of_its_own),
        cmocka_unit_test(knows_no_other_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
