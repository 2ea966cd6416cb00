#include "client/request_check.h"

#include "client/error.h"
#include "common/check.h"
#include "common/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One value with the path by which an error names it. */
struct subject {
    const struct wire_field *field;
    const void *value;
    const char *path;
};

static enum tandem_result check_number(const struct subject *subject, uint64_t value,
                                       const char *what, struct tandem_error *error)
{
    const struct wire_field *field = subject->field;
    if (value < field->minimum)
        return error_set_limit(error, TANDEM_INVALID, subject->path, (double)field->minimum,
                               "%s%s is %" PRIu64 ", the least is %" PRIu64, what, subject->path,
                               value, field->minimum);
    if (value > field->maximum)
        return error_set_limit(error, TANDEM_INVALID, subject->path, (double)field->maximum,
                               "%s%s is %" PRIu64 ", the limit is %" PRIu64, what, subject->path,
                               value, field->maximum);
    return TANDEM_OK;
}

static enum tandem_result check_real(const struct subject *subject, struct tandem_error *error)
{
    const struct wire_field *field = subject->field;
    const bool open = field->type == WIRE_TYPE_F32_ABOVE;
    const double value = (double)*(const float *)subject->value;
    if (isfinite(value) && (open ? value > field->low : value >= field->low) &&
        value <= field->high)
        return TANDEM_OK;
    return error_set_limit(error, TANDEM_INVALID, subject->path,
                           value > field->high ? field->high : field->low,
                           "%s is %g, allowed is %s %g to %g", subject->path, value,
                           open ? "above" : "from", field->low, field->high);
}

static enum tandem_result check_text(const struct subject *subject, const struct wire_text *text,
                                     struct tandem_error *error)
{
    enum tandem_result result = check_number(subject, text->length, "the length of ", error);
    if (result != TANDEM_OK || subject->field->type == WIRE_TYPE_BLOB)
        return result;
    size_t valid = utf8_valid_prefix(text->bytes, text->length);
    if (valid != text->length)
        return error_set(error, TANDEM_INVALID, subject->path, "%s is not UTF-8 at byte %zu",
                         subject->path, valid);
    return TANDEM_OK;
}

static enum tandem_result check_texts(const struct subject *subject, struct tandem_error *error)
{
    const struct wire_text_list *list = subject->value;
    for (uint32_t i = 0; i < list->count; i++) {
        char path[LIMIT_ERROR_FIELD_BYTES];
        (void)snprintf(path, sizeof path, "%s[%u]", subject->path, i);
        const struct subject item = {subject->field, &list->items[i], path};
        enum tandem_result result = check_text(&item, &list->items[i], error);
        if (result != TANDEM_OK)
            return result;
    }
    return TANDEM_OK;
}

static enum tandem_result check_tokens(const struct subject *subject, struct tandem_error *error)
{
    const struct wire_tokens *tokens = subject->value;
    for (uint32_t i = 0; i < tokens->count; i++) {
        uint32_t id;
        memcpy(&id, tokens->bytes + (size_t)i * sizeof id, sizeof id);
        if (id >= LIMIT_VOCABULARY)
            return error_set_limit(error, TANDEM_INVALID, subject->path, LIMIT_VOCABULARY - 1,
                                   "%s[%u] is %u, the limit is %d", subject->path, i, id,
                                   LIMIT_VOCABULARY - 1);
    }
    return check_number(subject, tokens->count, "the count of ", error);
}

static enum tandem_result check_value(const struct subject *subject, struct tandem_error *error)
{
    switch (subject->field->type) {
    case WIRE_TYPE_U32:
        return check_number(subject, *(const uint32_t *)subject->value, "", error);
    case WIRE_TYPE_U64:
        return check_number(subject, *(const uint64_t *)subject->value, "", error);
    case WIRE_TYPE_F32:
    case WIRE_TYPE_F32_ABOVE:
        return check_real(subject, error);
    case WIRE_TYPE_TEXT:
    case WIRE_TYPE_BLOB:
        return check_text(subject, subject->value, error);
    case WIRE_TYPE_TEXT_LIST:
        return check_texts(subject, error);
    case WIRE_TYPE_TOKENS:
        return check_tokens(subject, error);
    default: /* a bool cannot be wrong; requests have no other types */
        return TANDEM_OK;
    }
}

static bool is_present(const struct wire_field *field, const char *message)
{
    return field->presence != WIRE_OPTIONAL || *(const bool *)(message + field->has_offset);
}

static enum tandem_result check_items(const struct subject *subject, struct tandem_error *error)
{
    const struct wire_list *list = subject->value;
    const struct wire_table *table = subject->field->of_table;
    for (uint32_t i = 0; i < list->count; i++) {
        const char *item = (const char *)list->items + (size_t)i * table->struct_bytes;
        for (uint32_t k = 0; k < table->field_count; k++) {
            const struct wire_field *field = &table->fields[k];
            char path[LIMIT_ERROR_FIELD_BYTES];
            (void)snprintf(path, sizeof path, "%s[%u].%s", subject->path, i, field->name);
            const struct subject value = {field, item + field->offset, path};
            enum tandem_result result =
                is_present(field, item) ? check_value(&value, error) : TANDEM_OK;
            if (result != TANDEM_OK)
                return result;
        }
    }
    return check_number(subject, list->count, "the count of ", error);
}

static const struct wire_table *find_table(enum client_request_type type)
{
    for (uint32_t i = 0; i < client_request_family.count; i++) {
        if (client_request_family.tables[i]->number == (uint32_t)type)
            return client_request_family.tables[i];
    }
    return NULL;
}

enum tandem_result request_check(const struct client_request *request, struct tandem_error *error)
{
    const struct wire_table *table = find_table(request->type);
    CHECK(table != NULL);
    const char *message = (const char *)&request->submit; /* members of a union start together */
    for (uint32_t i = 0; i < table->field_count; i++) {
        const struct wire_field *field = &table->fields[i];
        if (!is_present(field, message))
            continue;
        const struct subject subject = {field, message + field->offset, field->name};
        enum tandem_result result = field->type == WIRE_TYPE_LIST ? check_items(&subject, error)
                                                                  : check_value(&subject, error);
        if (result != TANDEM_OK)
            return result;
    }
    return TANDEM_OK;
}
