#include "proto/error_codes.h"

#include "proto/wire_table.h"

WIRE_DEFINE_ENUM(error_code, ERROR_CODE_LIST)

const char *error_code_name(enum error_code code)
{
    return wire_enum_name(&error_code_enum, code);
}
