#include "client/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const codes[] = {
    [TANDEM_OK] = "",
    [TANDEM_REFUSED] = "internal", /* replaced by the code of the coordinator */
    [TANDEM_NOT_PERMITTED] = "not_permitted",
    [TANDEM_UNAVAILABLE] = "unavailable",
    [TANDEM_TIMEOUT] = "timeout",
    [TANDEM_INVALID] = "invalid_request",
    [TANDEM_TOO_LARGE] = "too_large",
    [TANDEM_BAD_REPLY] = "bad_reply",
    [TANDEM_NO_MEMORY] = "no_memory",
};

static void fill(struct tandem_error *error, enum tandem_result result, const char *field,
                 const char *format, va_list arguments)
{
    memset(error, 0, sizeof *error);
    (void)snprintf(error->code, sizeof error->code, "%s", codes[result]);
    (void)snprintf(error->field, sizeof error->field, "%s", field);
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
}

enum tandem_result error_set(struct tandem_error *error, enum tandem_result result,
                             const char *field, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, result, field, format, arguments);
        va_end(arguments);
    }
    return result;
}

enum tandem_result error_set_limit(struct tandem_error *error, enum tandem_result result,
                                   const char *field, double limit, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, result, field, format, arguments);
        va_end(arguments);
        error->has_limit = true;
        error->limit = limit;
    }
    return result;
}
