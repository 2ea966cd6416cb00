#include "common/check.h"

#include "common/exit_codes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void check_failed(const char *condition, const char *file, int line, const char *function)
{
    fprintf(stderr, "level=error event=check_failed where=%s:%d function=%s condition=\"%s\"\n",
            file, line, function, condition);
#ifdef NDEBUG
    _exit(EXIT_CODE_INTERNAL);
#else
    abort();
#endif
}
