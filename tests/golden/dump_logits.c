/* Runs token ids through the layers of a model and writes the logits of every position to stdout,
 * as raw fp32, for comparison with an oracle.
 *
 * usage: dump_logits MODEL BACKEND THREADS CHUNK < ids > logits
 * Input, little-endian u32: for each prompt the number of ids and the ids, until the end. Output:
 * for each prompt [ids][vocabulary]. MODEL: a GGUF file or a Hugging Face directory; BACKEND: auto,
 * plain, avx2 or avx512 on the CPU, or cuda; THREADS: of the CPU, 0 for all; CHUNK: rows of one
 * step. */
#include "golden/token_runner.h"
#include "support/isa_names.h"

#include <errno.h>

static void write_logits(void *context, uint32_t first, uint32_t rows, const float *logits)
{
    const struct token_runner *runner = context;
    size_t values = (size_t)rows * runner->model.shape.vocabulary;
    (void)first;
    if (fwrite(logits, sizeof *logits, values, stdout) != values || fflush(stdout) != 0)
        runner_fail("stdout", strerror(errno));
}

int main(int argc, char **argv)
{
    struct backend_options options = {.kind = BACKEND_CPU};
    struct token_runner runner = {0};
    if (argc != 5)
        runner_fail("usage", "dump_logits MODEL BACKEND THREADS CHUNK < ids > logits");
    if (strcmp(argv[2], "cuda") == 0)
        options.kind = BACKEND_CUDA;
    else if (!isa_from_name(argv[2], &options.cpu_isa))
        runner_fail("BACKEND", "is cuda, or of the CPU " ISA_NAMES_HELP);
    options.threads = (uint32_t)strtoul(argv[3], NULL, 10);
    runner.chunk = (uint32_t)strtoul(argv[4], NULL, 10);
    if (runner.chunk == 0)
        runner_fail("CHUNK", "must be at least 1");
    runner_open(&runner, argv[1], &options);
    uint32_t count;
    while (fread(&count, sizeof count, 1, stdin) == 1) {
        if (count == 0 || count > runner.context)
            runner_fail("ids", "a prompt is empty or longer than the context");
        if (fread(runner.ids, sizeof *runner.ids, count, stdin) != count)
            runner_fail("ids", "the input ends inside a prompt");
        for (uint32_t i = 0; i < count; i++)
            if (runner.ids[i] >= runner.model.shape.vocabulary)
                runner_fail("ids", "an id is beyond the vocabulary");
        runner_prompt(&runner, count, write_logits, &runner);
    }
    runner_close(&runner);
    return 0;
}
