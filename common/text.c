#include "common/text.h"

#include "common/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SHOWN = 64 };

void text_init(struct text *text, char *storage, size_t capacity)
{
    CHECK(capacity >= 1);
    *text = (struct text){.bytes = storage, .capacity = capacity};
    storage[0] = '\0';
}

struct text *reason_init(struct reason *reason)
{
    text_init(&reason->text, reason->storage, sizeof reason->storage);
    return &reason->text;
}

void text_append(struct text *text, const char *bytes, size_t length)
{
    if (text == NULL)
        return;
    size_t room = text->capacity - 1 - text->length;
    if (length > room) {
        length = room;
        text->truncated = true;
    }
    if (length > 0)
        memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void text_format_list(struct text *text, const char *format, va_list arguments)
{
    if (text == NULL)
        return;
    size_t room = text->capacity - text->length;
    int wanted = vsnprintf(text->bytes + text->length, room, format, arguments);
    if (wanted < 0)
        return;
    if ((size_t)wanted >= room) {
        text->truncated = true;
        text->length = text->capacity - 1;
    } else {
        text->length += (size_t)wanted;
    }
}

void text_format(struct text *text, const char *format, ...)
{
    if (text == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    text_format_list(text, format, arguments);
    va_end(arguments);
}

void text_set(struct text *text, const char *format, ...)
{
    if (text == NULL)
        return;
    text->length = 0;
    text->truncated = false;
    text->bytes[0] = '\0';
    va_list arguments;
    va_start(arguments, format);
    text_format_list(text, format, arguments);
    va_end(arguments);
}

void text_append_quoted(struct text *text, const char *bytes, size_t length, size_t shown)
{
    text_append(text, "\"", 1);
    for (size_t i = 0; i < length && i < shown; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\')
            text_append(text, &bytes[i], 1);
        else
            text_format(text, "\\x%02x", byte);
    }
    text_append(text, "\"", 1);
    if (length > shown)
        text_append(text, "...", 3);
}

enum status text_refuse(struct text *why, enum status status, const char *kind, const char *name,
                        const char *format, ...)
{
    if (why == NULL)
        return status;
    text_set(why, "%s ", kind);
    text_append_quoted(why, name, strlen(name), NAME_SHOWN);
    text_append(why, " ", 1);
    va_list arguments;
    va_start(arguments, format);
    text_format_list(why, format, arguments);
    va_end(arguments);
    return status;
}
