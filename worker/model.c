#include "worker/model.h"

enum status model_open(const char *path, struct backend *backend, weights_progress progress,
                       void *progress_context, struct model *out_model, struct text *why)
{
    struct gguf *gguf = NULL;
    struct model model = {0};
    enum status status = gguf_open(path, &gguf, why);
    if (status == STATUS_OK)
        status = model_shape_read(gguf, &model.shape, why);
    if (status == STATUS_OK) {
        const struct weights_source source = {
            .gguf = gguf,
            .shape = &model.shape,
            .progress = progress,
            .progress_context = progress_context,
        };
        status = weights_load(&source, backend, &model.weights, why);
    }
    if (status == STATUS_OK)
        *out_model = model;
    gguf_close(gguf);
    return status;
}

void model_close(struct model *model)
{
    weights_free(&model->weights);
}
