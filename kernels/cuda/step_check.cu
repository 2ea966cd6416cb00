/* The start check of the reproducibility contract: the library's products must have the bits of own
 * kernels for every number of rows that it will be called with, on this device, for this model's
 * weights. Where one differs, own kernels serve that product for all rows: slower, same results. */
#include "kernels/cuda/step_state.h"

enum { PROBE_ROWS = 8, PROBES = 4 };

/* Scratch of the check; lives for its time alone. */
struct probe {
    __nv_bfloat16 *input; /* [rows][widest] */
    uint8_t *library;     /* [rows][rows of the product], fp32 at most */
    uint8_t *own;         /* [PROBE_ROWS][rows of the product] */
    uint32_t *differences;
};

static uint32_t most_rows(const struct step *step, enum shape_kind kind)
{
    return library_rows(kind == SHAPE_LOGITS ? step->options.samples : step->options.rows);
}

/* PROBE_ROWS rows from `first` on by own kernels, against the library's. */
static enum status compare_rows(struct step *step, enum shape_kind kind, const struct probe *probe,
                                uint32_t first)
{
    const struct product *product = step_product(step, kind, 0);
    const uint64_t element = kind == SHAPE_LOGITS ? 4 : 2;
    struct operand_args order = {};
    order.rows = probe->input + (uint64_t)first * product->columns;
    order.row_count = PROBE_ROWS;
    order.columns = product->columns;
    order.out_rows = PROBE_ROWS;
    order.output = step->at.operand;
    struct few_args args = {};
    args.product = *product;
    args.row_tiles = 1;
    args.operand_rows = PROBE_ROWS;
    args.count = step->at.full;
    args.operand = step->at.operand;
    args.output = kind == SHAPE_LOGITS ? FEW_TO_LOGITS : FEW_TO_ROWS;
    args.logits = (float *)probe->own;
    args.rows_out = (__nv_bfloat16 *)probe->own;
    cudaError_t error = operand_launch(&order, step->cuda->stream);
    if (error == cudaSuccess)
        error = few_launch(&args, step->cuda->multiprocessors, step->cuda->stream);
    if (error == cudaSuccess)
        error = compare_launch(
            probe->own, probe->library + (uint64_t)first * product->rows * element,
            PROBE_ROWS * product->rows * element / 4, probe->differences, step->cuda->stream);
    return cuda_status(error, "check");
}

static enum status check_rows(struct step *step, enum shape_kind kind, uint32_t rows,
                              const struct probe *probe, uint32_t *out_differences)
{
    const struct product *product = step_product(step, kind, 0);
    const uint32_t firsts[PROBES] = {0, rows / 2 - PROBE_ROWS / 2, LIBRARY_ROWS_UNIT - PROBE_ROWS,
                                     rows - PROBE_ROWS};
    enum status status = cuda_status(
        cudaMemsetAsync(probe->differences, 0, sizeof *probe->differences, step->cuda->stream),
        "check");
    if (status == STATUS_OK)
        status = step_library(step, kind, product, probe->input, rows, probe->library);
    for (uint32_t i = 0; status == STATUS_OK && i < PROBES; i++)
        status = compare_rows(step, kind, probe, firsts[i]);
    if (status != STATUS_OK)
        return status;
    cudaError_t error =
        cudaMemcpyAsync(out_differences, probe->differences, sizeof *out_differences,
                        cudaMemcpyDeviceToHost, step->cuda->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(step->cuda->stream);
    return cuda_status(error, "check");
}

static enum status check_shape(struct step *step, enum shape_kind kind, const struct probe *probe,
                               uint32_t *pairs, uint32_t *failed)
{
    const struct product *product = step_product(step, kind, 0);
    step->library_serves[kind] = true;
    for (uint32_t rows = LIBRARY_ROWS_UNIT; rows <= most_rows(step, kind);
         rows = library_rows(rows + 1)) {
        uint32_t differences = 0;
        enum status status = check_rows(step, kind, rows, probe, &differences);
        if (status != STATUS_OK)
            return status;
        ++*pairs;
        if (differences == 0)
            continue;
        ++*failed;
        step->library_serves[kind] = false;
        log_warn("gemm_check_failed",
                 "rows=%u product=%ux%u words_differ=%u effect=\"own kernels for all rows: results "
                 "unchanged, prefill slower\"",
                 rows, product->rows, product->columns, differences);
    }
    return STATUS_OK;
}

enum status step_check(struct step *step)
{
    uint32_t widest = 0, longest = 0, pairs = 0, failed = 0;
    for (int kind = 0; kind < SHAPE_COUNT; kind++) {
        const struct product *product = step_product(step, (enum shape_kind)kind, 0);
        const uint32_t words = product->rows * (kind == SHAPE_LOGITS ? 2 : 1);
        widest = product->columns > widest ? product->columns : widest;
        longest = words > longest ? words : longest;
    }
    const uint64_t rows = library_rows(step->options.rows);
    const uint64_t samples = library_rows(step->options.samples);
    const uint64_t most = rows > samples ? rows : samples;
    struct probe probe = {};
    void *input = NULL, *library = NULL, *own = NULL, *differences = NULL;
    void **places[] = {&input, &library, &own, &differences};
    const uint64_t sizes[] = {most * widest * 2, most * longest * 2,
                              (uint64_t)PROBE_ROWS * longest * 2, sizeof(uint32_t)};
    enum status status = STATUS_OK;
    for (int i = 0; i < 4 && status == STATUS_OK; i++)
        status = cuda_take(step->cuda, sizes[i], true, places[i]);
    cudaError_t error = cudaSuccess;
    probe.input = (__nv_bfloat16 *)input;
    probe.library = (uint8_t *)library;
    probe.own = (uint8_t *)own;
    probe.differences = (uint32_t *)differences;
    if (status == STATUS_OK)
        error = cudaMemsetAsync(library, 0, most * longest * 2, step->cuda->stream);
    if (status == STATUS_OK && error == cudaSuccess)
        error = fill_launch(probe.input, most * widest, 1, step->cuda->stream);
    if (status == STATUS_OK)
        status = cuda_status(error, "check");
    for (int kind = 0; status == STATUS_OK && kind < SHAPE_COUNT; kind++)
        status = check_shape(step, (enum shape_kind)kind, &probe, &pairs, &failed);
    (void)cudaFree(input);
    (void)cudaFree(library);
    (void)cudaFree(own);
    (void)cudaFree(differences);
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (status == STATUS_OK)
        log_info("gemm_check", "pairs=%u failed=%u device=%s driver=%d runtime=%d cublas=%zu",
                 pairs, failed, step->cuda->name, driver, runtime, step->cuda->library.version());
    return status;
}
