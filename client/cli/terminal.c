#include "client/cli/terminal.h"

#include "common/utf8.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void terminal_open(struct terminal *terminal, FILE *file)
{
    *terminal = (struct terminal){.file = file, .interactive = isatty(fileno(file)) == 1};
}

/* C0 and C1 controls move the cursor or worse; the bidirectional ones turn the order of what
 * follows, also behind the text of the model. */
static bool is_unsafe(uint32_t code_point)
{
    return (code_point < 0x20 && code_point != '\n' && code_point != '\t') ||
           (code_point >= 0x7f && code_point < 0xa0) ||
           (code_point >= 0x202a && code_point <= 0x202e) ||
           (code_point >= 0x2066 && code_point <= 0x2069);
}

static void write_escaped(FILE *file, const char *text, size_t length)
{
    size_t valid = utf8_valid_prefix(text, length);
    for (size_t i = 0; i < length;) {
        size_t bytes = 1;
        if (i == valid) { /* one byte that is no UTF-8, then anew */
            (void)fprintf(file, "\\x%02x", (unsigned)(unsigned char)text[i]);
            valid = i + 1 + utf8_valid_prefix(text + i + 1, length - i - 1);
        } else {
            uint32_t code_point = utf8_decode(text + i, &bytes);
            if (!is_unsafe(code_point))
                (void)fwrite(text + i, 1, bytes, file);
            else
                (void)fprintf(file, code_point < 0x80 ? "\\x%02x" : "\\u%04x",
                              (unsigned)code_point);
        }
        i += bytes;
    }
}

bool terminal_write(struct terminal *terminal, const char *text, size_t length)
{
    if (length == 0)
        return true;
    if (terminal->interactive)
        write_escaped(terminal->file, text, length);
    else
        (void)fwrite(text, 1, length, terminal->file);
    terminal->line_open = text[length - 1] != '\n';
    return terminal_flush(terminal);
}

bool terminal_flush(struct terminal *terminal)
{
    errno = 0;
    if (fflush(terminal->file) == 0 && ferror(terminal->file) == 0)
        return true;
    if (terminal->failure == 0)
        terminal->failure = errno != 0 ? errno : EIO;
    return false;
}

bool terminal_end_line(struct terminal *terminal)
{
    return !terminal->line_open || terminal_write(terminal, "\n", 1);
}

void progress_open(struct progress *progress, bool wanted)
{
    const char *kind = getenv("TERM");
    *progress = (struct progress){.enabled = wanted && isatty(STDERR_FILENO) == 1 && kind != NULL &&
                                             strcmp(kind, "dumb") != 0};
}

void progress_show(struct progress *progress, const char *text)
{
    if (!progress->enabled || strcmp(progress->shown, text) == 0)
        return;
    (void)snprintf(progress->shown, sizeof progress->shown, "%s", text);
    (void)fprintf(stderr, "\r\033[K%s", progress->shown);
}

void progress_clear(struct progress *progress)
{
    if (progress->shown[0] == '\0')
        return;
    (void)fprintf(stderr, "\r\033[K");
    progress->shown[0] = '\0';
}
