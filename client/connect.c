/* The connection as the public header shows it. */
#include "client/error.h"
#include "client/exchange.h"
#include "client/tandem.h"

#include <stdlib.h>

enum { PATIENCE_MS = 15000, PATIENCE_MS_MAX = 3600 * 1000 };

enum tandem_result tandem_open(const struct tandem_settings *settings, struct tandem **out_tandem,
                               struct tandem_error *error)
{
    static const struct tandem_settings standard;
    if (settings == NULL)
        settings = &standard;
    if (settings->patience_ms > PATIENCE_MS_MAX)
        return error_set_limit(error, TANDEM_INVALID, "patience_ms", PATIENCE_MS_MAX,
                               "patience_ms is %u, the limit is %d", settings->patience_ms,
                               PATIENCE_MS_MAX);
    struct tandem *tandem = calloc(1, sizeof *tandem);
    if (tandem == NULL)
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    tandem->patience_ms = settings->patience_ms != 0 ? settings->patience_ms : PATIENCE_MS;
    tandem->on_retry = settings->on_retry;
    tandem->context = settings->context;
    enum tandem_result result = connection_open(&tandem->connection, settings->run_dir, error);
    if (result == TANDEM_OK)
        *out_tandem = tandem;
    else
        free(tandem);
    return result;
}

void tandem_close(struct tandem *tandem)
{
    if (tandem == NULL)
        return;
    connection_close(&tandem->connection);
    free(tandem);
}

const char *tandem_run_dir(const struct tandem *tandem)
{
    return tandem->connection.directory.path;
}

void tandem_free(void *memory)
{
    free(memory);
}
