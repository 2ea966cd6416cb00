/* tandem: asks the coordinator of this host. One command per run. */
#include "client/cli/arguments.h"
#include "client/cli/chat.h"
#include "client/cli/commands.h"
#include "client/cli/session.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum exit_code (*const commands[COMMAND_COUNT])(struct session *session) = {
    [COMMAND_GENERATE] = command_generate,     [COMMAND_CHAT] = chat_run,
    [COMMAND_STATUS] = command_status,         [COMMAND_CANCEL] = command_cancel,
    [COMMAND_HEALTH] = command_health,         [COMMAND_STATS] = command_stats,
    [COMMAND_MODELS] = command_models,         [COMMAND_TOKENIZE] = command_tokenize,
    [COMMAND_DETOKENIZE] = command_detokenize,
};

/* Ctrl-C with nothing to wait for. Other threads may hold any lock, so nothing is tidied up. */
static void leave(void)
{
    _exit(EXIT_CODE_INTERRUPTED);
}

static enum exit_code run_command(struct session *session)
{
    if (interrupt_start(session->interrupt, leave) != STATUS_OK) {
        (void)fprintf(stderr, "tandem: the system gives no more threads\n");
        return EXIT_CODE_SYSTEM;
    }
    enum exit_code code = commands[session->arguments->command](session);
    tandem_close(session->tandem);
    return code;
}

int main(int argc, char **argv)
{
    /* A closed pipe is an error of write, which cancels the request first. */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    if (words == NULL) {
        (void)fprintf(stderr, "tandem: out of memory\n");
        return EXIT_CODE_SYSTEM;
    }
    struct arguments arguments = {0};
    struct interrupt interrupt;
    struct session session = {.arguments = &arguments, .interrupt = &interrupt};
    struct reason reason;
    enum exit_code code = EXIT_CODE_OK;
    terminal_open(&session.output, stdout);
    if (arguments_read(argc, argv, words, &arguments, reason_init(&reason)) != STATUS_OK) {
        code = session_refuse(&session, reason.text.bytes);
    } else if (arguments.help) {
        arguments_print_help(arguments.command, stdout);
        code = session_flush(&session);
    } else if (arguments.version) {
        session_print(&session, "tandem %s\n", TANDEM_VERSION);
        code = session_flush(&session);
    } else {
        progress_open(&session.progress, !arguments.quiet);
        code = run_command(&session);
    }
    free(words);
    return code;
}
