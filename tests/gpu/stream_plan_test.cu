/* How the weights are dealt out to the CTAs of the persistent step (kernels/cuda/stream.h): every row
 * group has one owner, a CTA's weights are one run without holes, a slot of the ring holds whole
 * stages. Needs the toolkit, but no device. */
#include "stream_model.h"

#include <stdio.h>

namespace
{

int failures;

void expect(bool good, const char *what, const char *shape, uint32_t number)
{
    if (good)
        return;
    printf("FAIL %s: %s %u\n", shape, what, number);
    failures++;
}

/* Groups are covered once, in order, and nobody owns two units more than another. */
void test_owners(const struct stream_model &model, const struct stream_shape &shape)
{
    for (const struct stream_product &product : shape.product) {
        const uint32_t units = (product.rows + 8 * product.unit_groups - 1) /
                               (8 * product.unit_groups);
        uint32_t next = 0, most = 0, least = ~0u;
        for (uint32_t cta = 0; cta < shape.ctas; cta++) {
            const uint32_t groups = stream_groups(&product, cta);
            expect(stream_first(&product, cta) == next, "first group of CTA", model.name, cta);
            expect(groups % product.unit_groups == 0, "part of a unit at CTA", model.name, cta);
            next += groups;
            most = groups > most ? groups : most;
            least = groups < least ? groups : least;
        }
        expect(next == units * product.unit_groups, "groups in all", model.name, next);
        expect(stream_first(&product, shape.ctas) == next, "one past the last", model.name, next);
        expect(most - least <= product.unit_groups, "uneven by", model.name, most - least);
    }
}

/* A CTA reads on from where it stopped, and stays in its share. */
void test_places(const struct stream_model &model, const struct stream_shape &shape)
{
    for (uint32_t cta = 0; cta < shape.ctas; cta++) {
        uint64_t next = cta * shape.share;
        for (uint32_t i = 0; i <= shape.layers * STREAM_LOGITS; i++) {
            const uint32_t layer = i / STREAM_LOGITS;
            const uint32_t kind = layer < shape.layers ? i % STREAM_LOGITS : (uint32_t)STREAM_LOGITS;
            const struct stream_product &product = shape.product[kind];
            expect(stream_offset(&shape, cta, layer, kind) == next, "hole before product",
                   model.name, i);
            next += stream_bytes(stream_groups(&product, cta), product.columns);
        }
        expect(next <= (cta + 1) * shape.share, "share exceeded at CTA", model.name, cta);
    }
}

/* A stage fits its slot and the stages of a round are its whole k. */
void test_stages(const struct stream_model &model, const struct stream_shape &shape)
{
    for (const struct stream_product &product : shape.product)
        for (uint32_t groups = 1; groups <= 40; groups++) {
            uint32_t stages = 0;
            for (uint32_t round = 0; round * STREAM_ROUND_GROUPS < groups; round++) {
                const uint32_t together = stream_round(groups, round);
                const uint32_t steps = stream_stage_steps(together, product.columns);
                expect(steps >= 4 && (steps & (steps - 1)) == 0, "steps of a stage", model.name,
                       steps);
                expect(steps * together * STREAM_STEP_BYTES <= STREAM_STAGE_BYTES,
                       "a stage exceeds its slot, groups", model.name, together);
                expect(product.columns / 16 % steps == 0, "a part of a stage, groups", model.name,
                       together);
                stages += product.columns / 16 / steps;
            }
            expect(stages == stream_stages(groups, product.columns), "stages of groups", model.name,
                   groups);
        }
}

} // namespace

int main()
{
    static const struct stream_model models[] = {
        {"llama-1b", 16, 2048, 8192, 3072, 2048, 128256, 128},
        {"llama-1b, all multiprocessors", 16, 2048, 8192, 3072, 2048, 128256, 132},
        {"smollm2-135m", 30, 576, 1536, 960, 576, 49152, 120},
        {"head_dim 128", 2, 4096, 14336, 6144, 4096, 128256, 132},
        {"odd vocabulary", 1, 192, 320, 512, 256, 1001, 7},
    };
    for (const struct stream_model &model : models) {
        const struct stream_shape shape = stream_shape_of(model);
        test_owners(model, shape);
        test_places(model, shape);
        test_stages(model, shape);
    }
    printf("stream plan: %s (%d failures)\n", failures == 0 ? "all good" : "FAILED", failures);
    return failures == 0 ? 0 : 1;
}
