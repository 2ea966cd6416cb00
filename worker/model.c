#include "worker/model.h"

enum status model_open(const char *path, struct backend *backend, weights_progress progress,
                       void *progress_context, struct model *out_model, struct text *why)
{
    struct model_file *file = NULL;
    struct model model = {0};
    enum status status = model_file_open(path, &file, why);
    if (status == STATUS_OK)
        status = model_shape_read(file, &model.shape, why);
    if (status == STATUS_OK) {
        const struct weights_source source = {
            .file = file,
            .shape = &model.shape,
            .progress = progress,
            .progress_context = progress_context,
        };
        status = weights_load(&source, backend, &model.weights, why);
    }
    if (status == STATUS_OK)
        *out_model = model;
    model_file_close(file);
    return status;
}

void model_close(struct model *model)
{
    weights_free(&model->weights);
}
