/* Runs a fuzz target without libFuzzer: every file of a corpus, then seeded changes of those files.
 * usage: x_fuzz CORPUS-FOLDER [ROUNDS]   (a number of changed inputs, 5000 by default)
 * The runs are a child's: when it dies, the parent leaves that input in ./crash-input. */
#include "common/check.h"
#include "common/random.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { INPUT_BYTES_MAX = 1 << 16, INPUTS_MAX = 1024, ROUNDS = 5000, CHANGES_MAX = 8 };

struct input {
    uint8_t *bytes;
    size_t length;
};

static void run(const uint8_t *bytes, size_t length)
{
    /* A copy of the exact size, so that the sanitizer guards its end. */
    uint8_t *copy = malloc(length > 0 ? length : 1);
    CHECK(copy != NULL);
    if (length > 0)
        memcpy(copy, bytes, length);
    (void)LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

static struct input read_input(const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    struct input input = {.bytes = malloc(INPUT_BYTES_MAX)};
    FILE *file = fopen(path, "rb");
    CHECK(input.bytes != NULL && file != NULL);
    input.length = fread(input.bytes, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file);
    return input;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static size_t read_corpus(const char *folder, struct input *inputs)
{
    struct dirent **entries = NULL;
    int entry_count = scandir(folder, &entries, NULL, by_name);
    size_t count = 0;
    for (int i = 0; i < entry_count; i++) {
        if (entries[i]->d_name[0] != '.' && count < INPUTS_MAX)
            inputs[count++] = read_input(folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return count;
}

/* One change: a byte becomes another, a run goes away, or a run of another input comes in. */
static void change(struct input *work, const struct input *other, struct random *random)
{
    size_t at = random_below(random, work->length + 1);
    size_t rest = work->length - at;
    uint32_t kind = random_below(random, 3);
    if (kind == 0 && rest > 0) {
        work->bytes[at] = (uint8_t)random_next(random);
    } else if (kind == 1 && rest > 0) {
        size_t run_length = 1 + random_below(random, rest < 16 ? rest : 16);
        memmove(work->bytes + at, work->bytes + at + run_length, rest - run_length);
        work->length -= run_length;
    } else if (kind == 2 && other->length > 0) {
        size_t from = random_below(random, other->length);
        size_t run_length = 1 + random_below(random, other->length - from);
        if (run_length > INPUT_BYTES_MAX - work->length)
            return;
        memmove(work->bytes + at + run_length, work->bytes + at, rest);
        memcpy(work->bytes + at, other->bytes + from, run_length);
        work->length += run_length;
    }
}

/* Input number `index`: those of the corpus first, then changed ones, each a function of its
 * number. */
static void make_input(const struct input *inputs, size_t count, uint64_t index, struct input *work)
{
    struct random random = {index};
    const struct input *base = &inputs[index < count ? index : random_below(&random, count)];
    work->length = base->length;
    memcpy(work->bytes, base->bytes, base->length);
    if (index < count)
        return;
    for (uint32_t changes = 1 + random_below(&random, CHANGES_MAX); changes > 0; changes--)
        change(work, &inputs[random_below(&random, count)], &random);
}

static void keep(const struct input *input)
{
    FILE *file = fopen("crash-input", "wb");
    if (file == NULL)
        return;
    (void)fwrite(input->bytes, 1, input->length, file);
    (void)fclose(file);
}

/* Runs all inputs in a child that notes the number of the current one; whether it came through. */
static bool run_all(const struct input *inputs, size_t count, uint64_t total)
{
    struct input work = {.bytes = malloc(INPUT_BYTES_MAX)};
    uint64_t *current =
        mmap(NULL, sizeof *current, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(work.bytes != NULL && current != MAP_FAILED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (*current = 0; *current < total; (*current)++) {
            make_input(inputs, count, *current, &work);
            run(work.bytes, work.length);
        }
        free(work.bytes);
        exit(EXIT_SUCCESS);
    }
    int status = -1;
    bool passed = waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                  WEXITSTATUS(status) == EXIT_SUCCESS;
    if (!passed) {
        make_input(inputs, count, *current, &work);
        keep(&work);
        (void)fprintf(stderr, "input %llu of %llu broke the target; it is in ./crash-input\n",
                      (unsigned long long)*current, (unsigned long long)total);
    }
    free(work.bytes);
    (void)munmap(current, sizeof *current);
    return passed;
}

int main(int argument_count, char **arguments)
{
    static struct input inputs[INPUTS_MAX];
    size_t count = argument_count >= 2 ? read_corpus(arguments[1], inputs) : 0;
    if (count == 0) {
        (void)fprintf(stderr, "usage: %s CORPUS-FOLDER [ROUNDS]; the folder must hold an input\n",
                      arguments[0]);
        return EXIT_FAILURE;
    }
    uint64_t rounds = argument_count >= 3 ? strtoull(arguments[2], NULL, 10) : ROUNDS;
    bool passed = run_all(inputs, count, count + rounds);
    for (size_t i = 0; i < count; i++)
        free(inputs[i].bytes);
    if (passed)
        (void)printf("%zu inputs and %llu changes: no failure\n", count,
                     (unsigned long long)rounds);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
