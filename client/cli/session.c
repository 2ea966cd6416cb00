#include "client/cli/session.h"

#include "common/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Errors quote what others sent: on a terminal they are escaped like any text. */
static void print_sentence(struct session *session, const char *sentence)
{
    struct terminal errors;
    progress_clear(&session->progress);
    (void)terminal_end_line(&session->output);
    terminal_open(&errors, stderr);
    (void)fprintf(stderr, "tandem: ");
    (void)terminal_write(&errors, sentence, strlen(sentence));
    (void)fprintf(stderr, "\n");
}

static enum exit_code exit_code_of(enum tandem_result result)
{
    switch (result) {
    case TANDEM_OK:
        return EXIT_CODE_OK;
    case TANDEM_NOT_PERMITTED:
        return EXIT_CODE_PERMISSION;
    case TANDEM_UNAVAILABLE:
    case TANDEM_TIMEOUT:
        return EXIT_CODE_UNAVAILABLE;
    case TANDEM_INVALID:
    case TANDEM_TOO_LARGE:
        return EXIT_CODE_USAGE;
    case TANDEM_NO_MEMORY:
        return EXIT_CODE_SYSTEM;
    case TANDEM_REFUSED:
    case TANDEM_BAD_REPLY:
        return EXIT_CODE_REQUEST_FAILED;
    }
    return EXIT_CODE_INTERNAL;
}

/* Most bounds are whole numbers and shall look like it. */
static json_t *json_of_limit(double limit)
{
    return limit == floor(limit) && fabs(limit) < 1e15 ? json_integer((json_int_t)limit)
                                                       : json_real(limit);
}

enum exit_code session_fail(struct session *session, enum tandem_result result,
                            const struct tandem_error *error)
{
    if (session->arguments->json) {
        json_t *value = json_pack("{s:s, s:o}", "code", error->code, "message",
                                  json_of_text(error->message, strlen(error->message)));
        if (error->field[0] != '\0')
            (void)json_object_set_new(value, "field", json_string(error->field));
        if (error->has_limit)
            (void)json_object_set_new(value, "limit", json_of_limit(error->limit));
        if (error->retry_after_ms != 0)
            (void)json_object_set_new(value, "retry_after_ms",
                                      json_integer((json_int_t)error->retry_after_ms));
        (void)session_print_json(session, json_pack("{s:o}", "error", value));
        return exit_code_of(result);
    }
    char sentence[sizeof error->message + 64];
    (void)snprintf(sentence, sizeof sentence, "%s", error->message);
    size_t length = strlen(sentence);
    if (error->retry_after_ms != 0)
        (void)snprintf(sentence + length, sizeof sentence - length,
                       " (try again in %" PRIu64 " ms)", error->retry_after_ms);
    else if (result == TANDEM_UNAVAILABLE && strcmp(error->field, "run_dir") == 0 &&
             strstr(sentence, "--run-dir") == NULL)
        (void)snprintf(sentence + length, sizeof sentence - length, " (--run-dir DIR)");
    else if (strstr(sentence, "send `ids`") != NULL)
        (void)snprintf(sentence + length, sizeof sentence - length, " (generate --ids IDS)");
    print_sentence(session, sentence);
    return exit_code_of(result);
}

enum exit_code session_refuse(struct session *session, const char *why)
{
    print_sentence(session, why);
    if (session->arguments->command == COMMAND_NONE)
        arguments_print_help(COMMAND_NONE, stderr);
    else
        (void)fprintf(stderr, "`tandem %s --help` shows what there is.\n",
                      command_word(session->arguments->command));
    return EXIT_CODE_USAGE;
}

json_t *json_of_text(const char *text, size_t length)
{
    json_t *whole = json_stringn(text, length); /* NULL where it is not UTF-8 */
    if (whole != NULL)
        return whole;
    char *repaired = malloc(length * UTF8_REPLACEMENT_BYTES + 1);
    if (repaired == NULL)
        return json_null();
    size_t bytes = 0;
    for (size_t i = 0; i < length;) {
        size_t valid = utf8_valid_prefix(text + i, length - i);
        memcpy(repaired + bytes, text + i, valid);
        bytes += valid;
        i += valid;
        if (i < length) {
            memcpy(repaired + bytes, utf8_replacement, UTF8_REPLACEMENT_BYTES);
            bytes += UTF8_REPLACEMENT_BYTES;
            i++;
        }
    }
    json_t *value = json_stringn(repaired, bytes);
    free(repaired);
    return value;
}

enum exit_code session_print_json(struct session *session, json_t *value)
{
    char *line = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    if (line == NULL) {
        print_sentence(session, "out of memory");
        return EXIT_CODE_SYSTEM;
    }
    (void)fprintf(session->output.file, "%s\n", line);
    free(line);
    return session_flush(session);
}

void session_print(struct session *session, const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (wanted > 0)
        (void)terminal_write(&session->output, line, strlen(line));
}

enum exit_code session_flush(struct session *session)
{
    if (terminal_flush(&session->output))
        return EXIT_CODE_OK;
    /* Who reads through a pipe and leaves early (head) wants no complaint. */
    if (session->output.failure != EPIPE) {
        char sentence[128];
        (void)snprintf(sentence, sizeof sentence, "cannot write the output: %s",
                       strerror(session->output.failure));
        session->output.line_open = false;
        print_sentence(session, sentence);
    }
    return EXIT_CODE_IO;
}

static void tell_retry(void *context, const char *why)
{
    struct session *session = context;
    if (session->arguments->quiet)
        return;
    progress_clear(&session->progress);
    (void)terminal_end_line(&session->output);
    (void)fprintf(stderr, "[%s]\n", why);
}

enum exit_code session_connect(struct session *session)
{
    const struct tandem_settings settings = {
        .run_dir = session->arguments->run_dir,
        .patience_ms = (uint32_t)session->arguments->patience_ms,
        .on_retry = tell_retry,
        .context = session,
    };
    struct tandem_error error;
    enum tandem_result result = tandem_open(&settings, &session->tandem, &error);
    return result == TANDEM_OK ? EXIT_CODE_OK : session_fail(session, result, &error);
}
