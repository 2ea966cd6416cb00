#include "coordinator/outbox.h"

#include "common/check.h"

#include <stdarg.h>
#include <stdlib.h>

struct outbox_chunk {
    struct outbox_chunk *next;
    max_align_t bytes[];
};

enum status outbox_init(struct outbox *outbox, struct arena *arena, uint32_t capacity,
                        void *(*reallocate)(void *memory, size_t bytes))
{
    struct outbox made = {.capacity = capacity, .reallocate = reallocate};
    made.items = arena_alloc_array(arena, capacity, sizeof *made.items);
    made.text = arena_alloc(arena, OUTBOX_TEXT_BYTES);
    if (made.items == NULL || made.text == NULL)
        return STATUS_OUT_OF_MEMORY;
    *outbox = made;
    return STATUS_OK;
}

void outbox_free(struct outbox *outbox)
{
    while (outbox->chunks != NULL) {
        struct outbox_chunk *chunk = outbox->chunks;
        outbox->chunks = chunk->next;
        free(chunk);
    }
    *outbox = (struct outbox){0};
}

void outbox_begin(struct outbox *outbox)
{
    CHECK(outbox->first == outbox->count);
    while (outbox->chunks != NULL) {
        struct outbox_chunk *chunk = outbox->chunks;
        outbox->chunks = chunk->next;
        free(chunk);
    }
    outbox->first = 0;
    outbox->count = 0;
    outbox->text_bytes = 0;
    outbox->log_lines = 0;
}

struct core_output *outbox_add(struct outbox *outbox, enum core_output_kind kind)
{
    CHECK(outbox->count < outbox->capacity);
    struct core_output *output = &outbox->items[outbox->count++];
    *output = (struct core_output){.kind = kind};
    return output;
}

bool outbox_take(struct outbox *outbox, struct core_output *out_output)
{
    if (outbox->first == outbox->count)
        return false;
    *out_output = outbox->items[outbox->first++];
    return true;
}

static const char *format_list(struct outbox *outbox, const char *format, va_list arguments)
{
    uint32_t room = OUTBOX_TEXT_BYTES - outbox->text_bytes;
    if (room == 0)
        return "";
    struct text text;
    text_init(&text, outbox->text + outbox->text_bytes, room);
    text_format_list(&text, format, arguments);
    outbox->text_bytes += (uint32_t)text.length + 1;
    return text.bytes;
}

const char *outbox_format(struct outbox *outbox, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *text = format_list(outbox, format, arguments);
    va_end(arguments);
    return text;
}

void *outbox_allocate(struct outbox *outbox, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    struct outbox_chunk *chunk = outbox->reallocate(NULL, sizeof *chunk + bytes);
    if (chunk == NULL)
        return NULL;
    chunk->next = outbox->chunks;
    outbox->chunks = chunk;
    return chunk->bytes;
}

void outbox_log(struct outbox *outbox, enum log_level level, const char *event, const char *format,
                ...)
{
    if (outbox->log_lines == OUTBOX_LOG_LINES_MAX) {
        outbox->log_lines_dropped++;
        return;
    }
    outbox->log_lines++;
    va_list arguments;
    va_start(arguments, format);
    const char *text = format_list(outbox, format, arguments);
    va_end(arguments);
    struct core_output *output = outbox_add(outbox, CORE_OUTPUT_LOG);
    output->log = (struct core_log){.level = level, .event = event, .text = text};
}
