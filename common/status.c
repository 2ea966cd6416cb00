#include "common/status.h"

static const char *const STATUS_TEXTS[STATUS_COUNT] = {
#define STATUS_TEXT(name, text) [STATUS_##name] = (text),
    STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
};

const char *status_text(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? STATUS_TEXTS[status] : "unknown status";
}
