#include "client/cli/chat.h"

#include "client/cli/answer.h"
#include "client/cli/input.h"

#include <stdlib.h>
#include <string.h>

/* The conversation so far. Contents are owned but for the system message. */
struct history {
    struct tandem_message *messages;
    size_t count;
    size_t capacity;
    size_t first; /* 1 with a system message, which is not owned; else 0 */
};

static void history_clear(struct history *history)
{
    for (size_t i = history->first; i < history->count; i++)
        free((void *)(uintptr_t)history->messages[i].content);
    history->count = history->first;
}

static void history_free(struct history *history)
{
    history_clear(history);
    free(history->messages);
    *history = (struct history){0};
}

/* Takes `content` (malloc), also on failure. */
static bool history_add(struct history *history, const char *role, char *content, size_t bytes)
{
    if (history->count == history->capacity) {
        size_t room = history->capacity == 0 ? 16 : 2 * history->capacity;
        struct tandem_message *grown = realloc(history->messages, room * sizeof *history->messages);
        if (grown == NULL) {
            free(content);
            return false;
        }
        history->messages = grown;
        history->capacity = room;
    }
    history->messages[history->count++] =
        (struct tandem_message){.role = role, .content = content, .content_bytes = bytes};
    return true;
}

static void history_drop_last(struct history *history)
{
    free((void *)(uintptr_t)history->messages[--history->count].content);
}

static bool history_init(struct history *history, const char *system)
{
    *history = (struct history){0};
    if (system == NULL)
        return true;
    /* borrowed: `first` keeps history_clear away from it */
    history->messages = malloc(16 * sizeof *history->messages);
    if (history->messages == NULL)
        return false;
    history->capacity = 16;
    history->messages[history->count++] =
        (struct tandem_message){.role = "system", .content = system};
    history->first = 1;
    return true;
}

static enum exit_code fail_memory(struct session *session)
{
    const struct tandem_error error = {.code = "no_memory", .message = "out of memory"};
    return session_fail(session, TANDEM_NO_MEMORY, &error);
}

static enum exit_code answer_message(struct session *session, const char *text, size_t length)
{
    struct tandem_message messages[2];
    size_t count = 0;
    if (session->arguments->system != NULL)
        messages[count++] =
            (struct tandem_message){.role = "system", .content = session->arguments->system};
    messages[count++] =
        (struct tandem_message){.role = "user", .content = text, .content_bytes = length};
    struct tandem_request request = {.messages = messages, .message_count = count};
    answer_take_arguments(session->arguments, &request);
    return answer_once(session, &request);
}

/* One turn. A turn that failed is taken back, so that the user may try it again. */
static enum exit_code take_turn(struct session *session, struct history *history, char *line,
                                size_t bytes)
{
    if (!history_add(history, "user", line, bytes))
        return fail_memory(session);
    struct tandem_request request = {.messages = history->messages,
                                     .message_count = history->count};
    answer_take_arguments(session->arguments, &request);
    struct reply reply = {0};
    enum exit_code code = answer_show(session, &request, &reply);
    if (code == EXIT_CODE_OK && reply.text_bytes > 0 && !reply.finish.failed) {
        if (!history_add(history, "assistant", reply.text, reply.text_bytes))
            code = fail_memory(session);
        reply.text = NULL;
    } else {
        history_drop_last(history);
    }
    reply_free(&reply);
    /* An error of this turn was told; the conversation ends only with its terminal, its
     * coordinator or its memory. */
    return code == EXIT_CODE_REQUEST_FAILED || code == EXIT_CODE_USAGE ? EXIT_CODE_OK : code;
}

/* Takes `line`. True when it was a command or empty. */
static bool is_command(struct history *history, const char *line)
{
    if (line[0] == '\0')
        return true;
    if (strcmp(line, "/new") == 0) {
        history_clear(history);
        (void)fprintf(stderr, "[a new conversation]\n");
        return true;
    }
    if (line[0] == '/') {
        (void)fprintf(stderr, "[/new starts a new conversation, /exit ends; a message does not "
                              "begin with /]\n");
        return true;
    }
    return false;
}

static enum exit_code converse(struct session *session, struct history *history)
{
    (void)fprintf(stderr, "[a conversation: /new starts again, /exit or Ctrl-D ends, Ctrl-C stops "
                          "an answer]\n");
    for (;;) {
        char *line = NULL;
        size_t capacity = 0;
        (void)fprintf(stderr, "> ");
        ssize_t length = getline(&line, &capacity, stdin);
        if (length <= 0) {
            free(line);
            (void)fprintf(stderr, "\n");
            return EXIT_CODE_OK;
        }
        if (line[length - 1] == '\n')
            line[--length] = '\0';
        const bool leave = strcmp(line, "/exit") == 0;
        if (leave || is_command(history, line)) {
            free(line);
            if (leave)
                return EXIT_CODE_OK;
            continue;
        }
        enum exit_code code = take_turn(session, history, line, (size_t)length);
        if (code != EXIT_CODE_OK)
            return code;
    }
}

enum exit_code chat_run(struct session *session)
{
    if (input_is_missing(session->arguments) && !session->arguments->json) {
        struct history history;
        if (!history_init(&history, session->arguments->system))
            return fail_memory(session);
        enum exit_code code = session_connect(session);
        if (code == EXIT_CODE_OK)
            code = converse(session, &history);
        history_free(&history);
        return code;
    }
    struct reason reason;
    struct input input;
    if (input_read(session->arguments, true, &input, reason_init(&reason)) != STATUS_OK)
        return session_refuse(session, reason.text.bytes);
    enum exit_code code = session_connect(session);
    if (code == EXIT_CODE_OK)
        code = answer_message(session, input.text, input.length);
    input_free(&input);
    return code;
}
