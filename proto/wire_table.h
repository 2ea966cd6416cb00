/* Makes the constant tables of wire.h from lists of fields. For the .c files that own a list. */
#ifndef TANDEM_PROTO_WIRE_TABLE_H
#define TANDEM_PROTO_WIRE_TABLE_H

#include "proto/wire.h"

/* clang-format off */

/* Initialisers of the bounds of a field. */
#define WIRE_COUNTED(of, low_, high_) .minimum = (low_), .maximum = (high_)
#define WIRE_MEASURED(of, low_, high_) .low = (low_), .high = (high_)
#define WIRE_UNBOUNDED(of, low_, high_) .minimum = 0
#define WIRE_BOUNDS_BOOL WIRE_UNBOUNDED
#define WIRE_BOUNDS_U32 WIRE_COUNTED
#define WIRE_BOUNDS_U64 WIRE_COUNTED
#define WIRE_BOUNDS_F32 WIRE_MEASURED
#define WIRE_BOUNDS_F32_ABOVE WIRE_MEASURED
#define WIRE_BOUNDS_F64 WIRE_MEASURED
#define WIRE_BOUNDS_ENUM(of, low_, high_) .of_enum = &of##_enum
#define WIRE_BOUNDS_ID128 WIRE_UNBOUNDED
#define WIRE_BOUNDS_TEXT WIRE_COUNTED
#define WIRE_BOUNDS_BLOB WIRE_COUNTED
#define WIRE_BOUNDS_TEXT_LIST WIRE_COUNTED
#define WIRE_BOUNDS_TOKENS WIRE_COUNTED
#define WIRE_BOUNDS_COLUMN_U32 WIRE_COUNTED
#define WIRE_BOUNDS_COLUMN_F32 WIRE_COUNTED
#define WIRE_BOUNDS_COLUMN_U64 WIRE_COUNTED
#define WIRE_BOUNDS_GROUP(of, low_, high_) .of_table = &of##_table
#define WIRE_BOUNDS_LIST(of, low_, high_) .of_table = &of##_table, .minimum = (low_), .maximum = (high_)

#define WIRE_HAS_OFFSET_REQUIRED(T, name_) 0
#define WIRE_HAS_OFFSET_OPTIONAL(T, name_) offsetof(struct T, has_##name_)
#define WIRE_HAS_OFFSET_DEFAULT(T, name_) 0

#define WIRE_FIELD(T, key_, name_, TYPE, of, PRESENCE, low_, high_, text_) \
    {.key = (key_), .type = WIRE_TYPE_##TYPE, .presence = WIRE_##PRESENCE, \
     .offset = offsetof(struct T, name_), .has_offset = WIRE_HAS_OFFSET_##PRESENCE(T, name_), \
     .name = #name_, .text = (text_), WIRE_BOUNDS_##TYPE(of, low_, high_)},

/* Table of a message: for lists X(number, struct, member, name, FIELDS, text). */
#define WIRE_DEFINE_TABLE(number_, tag, member, name_, FIELDS, text_) \
    static const struct wire_field tag##_fields[] = {FIELDS(WIRE_FIELD, tag)}; \
    const struct wire_table tag##_table = { \
        .name = (name_), .text = (text_), .number = (number_), .struct_bytes = sizeof(struct tag), \
        .field_count = sizeof tag##_fields / sizeof tag##_fields[0], .fields = tag##_fields};

/* Table of a group or of the items of a list: they have no `type`. */
#define WIRE_DEFINE_GROUP(tag, FIELDS, text) WIRE_DEFINE_TABLE(0, tag, none, #tag, FIELDS, text)

#define WIRE_ENUM_VALUE(enumerator, number_, name_, text_) {(number_), (name_), (text_)},
#define WIRE_DEFINE_ENUM(tag, LIST) \
    static const struct wire_enum_value tag##_values[] = {LIST(WIRE_ENUM_VALUE)}; \
    const struct wire_enum tag##_enum = {#tag, tag##_values, \
                                         sizeof tag##_values / sizeof tag##_values[0]};

#define WIRE_TABLE_ADDRESS(number, tag, member, name, FIELDS, text) &tag##_table,

/* clang-format on */
#endif
