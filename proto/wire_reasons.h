/* The sentences of a refused message: which field, what came, what is allowed. Each function fills
 * a wire_error. */
#ifndef TANDEM_PROTO_WIRE_REASONS_H
#define TANDEM_PROTO_WIRE_REASONS_H

#include "common/text.h"
#include "proto/msgpack_reader.h"
#include "proto/wire.h"

/* The structure is broken at `offset` of the frame. */
void wire_refuse_structure(struct wire_error *error, enum msgpack_flaw flaw, size_t offset);

/* The frame is no map, or has no usable `type`; `item` is what came instead, NULL if nothing did.
 */
void wire_refuse_frame(struct wire_error *error, const struct msgpack_item *item);
void wire_refuse_type(struct wire_error *error, const struct wire_family *family,
                      const struct msgpack_item *item);

/* Field `path` has a value that its table forbids. */
void wire_refuse_value(struct wire_error *error, const char *path, const struct wire_field *field,
                       const struct msgpack_item *item);
void wire_refuse_missing(struct wire_error *error, const char *path,
                         const struct wire_field *field);
void wire_refuse_repeated(struct wire_error *error, const char *path);

/* `item` is a key that `table` does not have; `path` leads to the map. */
void wire_refuse_unknown(struct wire_error *error, const char *path, const struct wire_table *table,
                         const struct wire_family *family, const struct msgpack_item *item);

/* Any other reason. */
void wire_refuse(struct wire_error *error, uint32_t code, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What a field may hold, as it ends the sentence "it must be ...". Also used by the documents. */
void wire_describe_bounds(struct text *text, const struct wire_field *field);

#endif
