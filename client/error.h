/* Fills struct tandem_error for mistakes that the library itself finds. */
#ifndef TANDEM_CLIENT_ERROR_H
#define TANDEM_CLIENT_ERROR_H

#include "client/tandem.h"

/* Empties `error` (may be NULL), sets code, field ("" = none) and the formatted sentence, returns
 * `result`. The code follows from the result. */
enum tandem_result error_set(struct tandem_error *error, enum tandem_result result,
                             const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same with a bound that was passed. */
enum tandem_result error_set_limit(struct tandem_error *error, enum tandem_result result,
                                   const char *field, double limit, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
