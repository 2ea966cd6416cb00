/* A model file in memory that both programs take: small shape with weights, small tokenizer. */
#ifndef TANDEM_TESTS_SUPPORT_WHOLE_MODEL_H
#define TANDEM_TESTS_SUPPORT_WHOLE_MODEL_H

#include "support/small_tokenizer.h"
#include "support/tiny_model.h"

/* The caller may change it before whole_model_build(). */
struct whole_model {
    struct tiny_model shape;
    struct small_options tokenizer;
};

static inline struct whole_model whole_model_defaults(void)
{
    struct whole_model model = {.shape = TINY_MODEL, .tokenizer = small_defaults()};
    model.shape.context = 512;
    return model;
}

/* Keys and tensors; builder_finish() makes the file. */
static inline void whole_model_build(struct gguf_builder *builder, const struct whole_model *model)
{
    builder_init(builder);
    tiny_shape_keys(builder, &model->shape);
    small_put_keys(builder, &model->tokenizer);
    tiny_tensors(builder, &model->shape);
}

/* The caller frees it. */
static inline uint8_t *whole_model_file(const struct whole_model *model, size_t *out_length)
{
    struct gguf_builder builder;
    whole_model_build(&builder, model);
    uint8_t *file = builder_finish(&builder, out_length);
    builder_free(&builder);
    return file;
}

#endif
