#include "client/cli/input.h"

#include "proto/limits.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One byte more than a request may hold: enough to see that a text is too large. */
enum { INPUT_BYTES = TANDEM_FRAME_BYTES_MAX + 1 };

static bool reads_standard_input(const struct arguments *arguments)
{
    return arguments->file == NULL ? arguments->word_count == 0 : strcmp(arguments->file, "-") == 0;
}

bool input_is_missing(const struct arguments *arguments)
{
    return arguments->word_count == 0 && arguments->file == NULL && isatty(STDIN_FILENO) == 1;
}

static enum status join_words(const struct arguments *arguments, struct input *input,
                              struct text *why)
{
    for (size_t i = 0; i < arguments->word_count; i++) {
        size_t bytes = strlen(arguments->words[i]);
        if (input->length + bytes + 1 >= INPUT_BYTES) {
            text_set(why, "the text is larger than %d bytes, the limit of one request",
                     TANDEM_FRAME_BYTES_MAX);
            return STATUS_TOO_LARGE;
        }
        if (i > 0)
            input->text[input->length++] = ' ';
        memcpy(input->text + input->length, arguments->words[i], bytes);
        input->length += bytes;
    }
    return STATUS_OK;
}

static enum status read_file(FILE *file, const char *name, struct input *input, struct text *why)
{
    input->length = fread(input->text, 1, INPUT_BYTES, file);
    if (ferror(file)) {
        text_set(why, "cannot read %s: %s", name, strerror(errno));
        return STATUS_INVALID;
    }
    if (input->length == INPUT_BYTES) {
        text_set(why, "%s is larger than %d bytes, the limit of one request", name,
                 TANDEM_FRAME_BYTES_MAX);
        return STATUS_TOO_LARGE;
    }
    return STATUS_OK;
}

static enum status read_named(const char *name, struct input *input, struct text *why)
{
    FILE *file = fopen(name, "r");
    if (file == NULL) {
        text_set(why, "cannot open %s: %s", name, strerror(errno));
        return STATUS_INVALID;
    }
    enum status status = read_file(file, name, input, why);
    (void)fclose(file);
    return status;
}

static enum status open_and_read(const struct arguments *arguments, struct input *input,
                                 struct text *why)
{
    if (reads_standard_input(arguments))
        return read_file(stdin, "standard input", input, why);
    return read_named(arguments->file, input, why);
}

enum status input_read(const struct arguments *arguments, bool trim, struct input *out_input,
                       struct text *why)
{
    if (arguments->word_count > 0 && arguments->file != NULL) {
        text_set(why, "give the text once: on the command line or with --file");
        return STATUS_INVALID;
    }
    if (input_is_missing(arguments)) {
        text_set(why,
                 "the text is missing: give it as an argument, with --file, or through a pipe");
        return STATUS_INVALID;
    }
    struct input input = {.text = malloc((size_t)INPUT_BYTES + 1)};
    if (input.text == NULL) {
        text_set(why, "out of memory");
        return STATUS_OUT_OF_MEMORY;
    }
    enum status status = arguments->word_count > 0 ? join_words(arguments, &input, why)
                                                   : open_and_read(arguments, &input, why);
    if (status != STATUS_OK) {
        input_free(&input);
        return status;
    }
    const bool from_file = arguments->word_count == 0;
    if (trim && from_file && input.length > 0 && input.text[input.length - 1] == '\n')
        input.length--;
    input.text[input.length] = '\0';
    *out_input = input;
    return STATUS_OK;
}

void input_free(struct input *input)
{
    free(input->text);
    *input = (struct input){0};
}

enum status input_parse_ids(const char *text, size_t length, uint32_t *ids, size_t *out_count,
                            struct text *why)
{
    size_t count = 0;
    if (memchr(text, 0, length) != NULL) {
        text_set(why, "a list of token ids has no zero bytes");
        return STATUS_INVALID;
    }
    for (;;) {
        text += strspn(text, " \t\r\n,[]");
        if (*text == '\0')
            break;
        size_t digits = strspn(text, "0123456789");
        unsigned long value = digits > 0 && digits <= 9 ? strtoul(text, NULL, 10) : ULONG_MAX;
        if (value >= LIMIT_VOCABULARY) {
            text_set(why, "a token id is a whole number below %d, not ", LIMIT_VOCABULARY);
            text_append_quoted(why, text, strcspn(text, " \t\r\n,[]"), 40);
            return STATUS_INVALID;
        }
        ids[count++] = (uint32_t)value;
        text += digits;
    }
    *out_count = count;
    return STATUS_OK;
}

/* Text of ids from the file `name`, parsed. */
static enum status read_ids_of(const char *name, uint32_t **out_ids, size_t *out_count,
                               struct text *why)
{
    struct input input = {.text = malloc((size_t)INPUT_BYTES + 1)};
    uint32_t *ids = NULL;
    enum status status = input.text != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = strcmp(name, "-") == 0 ? read_file(stdin, "standard input", &input, why)
                                        : read_named(name, &input, why);
    if (status == STATUS_OK) {
        input.text[input.length] = '\0';
        ids = calloc(input.length + 1, sizeof *ids); /* an id takes at least one byte */
        status = ids != NULL ? input_parse_ids(input.text, input.length, ids, out_count, why)
                             : STATUS_OUT_OF_MEMORY;
    }
    input_free(&input);
    if (status == STATUS_OK)
        *out_ids = ids;
    else
        free(ids);
    return status;
}

/* A list rather than the name of a file: also -1, so that the number is refused and not looked for
 * as a file. */
static bool begins_list(const char *list)
{
    const char first = list[0] == '-' ? list[1] : list[0];
    return (first >= '0' && first <= '9') || list[0] == '[';
}

enum status input_read_ids(const struct arguments *arguments, uint32_t **out_ids, size_t *out_count,
                           struct text *why)
{
    const char *list = arguments->ids;
    if (arguments->word_count > 0 || arguments->file != NULL) {
        text_set(why, "give the prompt once: with --ids, or as a text");
        return STATUS_INVALID;
    }
    list += strspn(list, " \t\n");
    enum status status = STATUS_OUT_OF_MEMORY;
    if (!begins_list(list)) {
        status = read_ids_of(list, out_ids, out_count, why);
    } else {
        uint32_t *ids = calloc(strlen(list) + 1, sizeof *ids);
        if (ids != NULL)
            status = input_parse_ids(list, strlen(list), ids, out_count, why);
        if (status == STATUS_OK)
            *out_ids = ids;
        else
            free(ids);
        if (status == STATUS_INVALID)
            text_format(why, "; a file with such a name is given as ./NAME");
    }
    if (status == STATUS_OUT_OF_MEMORY)
        text_set(why, "out of memory");
    return status;
}
