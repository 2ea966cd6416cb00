/* How the products of a model are dealt out to CTAs (kernels/cuda/stream.h), for tests and timings.
 */
#ifndef TANDEM_TESTS_GPU_STREAM_MODEL_H
#define TANDEM_TESTS_GPU_STREAM_MODEL_H

#include "kernels/cuda/stream.h"

struct stream_model {
    const char *name;
    uint32_t layers, width, ffn_width, heads_rows, query, vocabulary, ctas;
};

static inline struct stream_product stream_deal(uint32_t rows, uint32_t columns,
                                                uint32_t unit_groups, uint32_t ctas)
{
    const uint32_t units = (rows + 8 * unit_groups - 1) / (8 * unit_groups);
    return {rows, columns, unit_groups, units / ctas, units % ctas};
}

static inline struct stream_shape stream_shape_of(const struct stream_model &model)
{
    struct stream_shape shape = {};
    const uint32_t ctas = model.ctas;
    shape.ctas = ctas;
    shape.layers = model.layers;
    shape.product[STREAM_HEADS] = stream_deal(model.heads_rows, model.width, 1, ctas);
    shape.product[STREAM_OUTPUT] = stream_deal(model.width, model.query, 2, ctas);
    shape.product[STREAM_PAIRS] = stream_deal(2 * model.ffn_width, model.width, 2, ctas);
    shape.product[STREAM_DOWN] = stream_deal(model.width, model.ffn_width, 2, ctas);
    shape.product[STREAM_LOGITS] = stream_deal(model.vocabulary, model.width, 2, ctas);
    for (uint32_t cta = 0; cta < ctas; cta++) {
        const struct stream_product *logits = &shape.product[STREAM_LOGITS];
        const uint64_t bytes = shape.layers * stream_layer_bytes(&shape, cta) +
                               stream_bytes(stream_groups(logits, cta), logits->columns);
        shape.share = bytes > shape.share ? bytes : shape.share;
    }
    return shape;
}

#endif
