#include "common/model_file.h"

#include "common/check.h"
#include "common/json_input.h"
#include "common/mapped_file.h"
#include "common/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG     "config.json"
#define GENERATION "generation_config.json"
#define TOKENIZER  "tokenizer.json"
#define ONE_FILE   "model.safetensors"
#define INDEX      "model.safetensors.index.json"

enum {
    PATH_BYTES = 4096,
    FILE_NAME_BYTES_MAX = 255,
    CONFIG_BYTES_MAX = 1 << 20,
    INDEX_BYTES_MAX = 16 << 20,
};

static const char SUFFIX[] = ".safetensors";

struct model_file {
    enum model_file_kind kind;
    struct gguf *gguf;           /* owned; NULL for a directory */
    struct model_config config;  /* of a directory */
    struct safetensors **shards; /* owned [shard_count] */
    uint32_t shard_count;
    bool tokenizer_json;
    uint32_t tensor_count;
    struct model_file_tensor *tensors;        /* owned [tensor_count] */
    const struct model_file_tensor **by_name; /* owned [tensor_count], ascending */
};

/* ---- One view of the tensors ---- */

static int compare_names(const void *a, const void *b)
{
    const struct model_file_tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static const struct model_file_tensor *find_name(const struct model_file *file, const char *name)
{
    const struct model_file_tensor wanted = {.name = name}, *key = &wanted;
    if (file->tensor_count == 0)
        return NULL;
    const struct model_file_tensor *const *found =
        bsearch(&key, file->by_name, file->tensor_count, sizeof *file->by_name, compare_names);
    return found != NULL ? *found : NULL;
}

static void view_gguf(struct model_file *file)
{
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(file->gguf, i);
        file->tensors[i] = (struct model_file_tensor){
            .name = tensor->name,
            .type_name = gguf_tensor_layout(tensor->type)->name,
            .type = tensor->type,
            .bytes = tensor->bytes,
            .content = gguf_tensor_bytes(file->gguf, tensor),
            .index = i,
        };
        memcpy(file->tensors[i].extent, tensor->extent, sizeof tensor->extent);
    }
}

static uint32_t number_of_type(enum safetensors_type type)
{
    static const uint32_t numbers[] = {
        [SAFETENSORS_TYPE_F32] = GGUF_TENSOR_F32,
        [SAFETENSORS_TYPE_F16] = GGUF_TENSOR_F16,
        [SAFETENSORS_TYPE_BF16] = GGUF_TENSOR_BF16,
        [SAFETENSORS_TYPE_OTHER] = MODEL_FILE_TYPE_OTHER,
    };
    return numbers[type];
}

static void view_shards(struct model_file *file)
{
    _Static_assert((int)SAFETENSORS_DIMENSIONS_MAX == (int)GGUF_DIMENSIONS_MAX, "one view");
    uint32_t at = 0;
    for (uint32_t shard = 0; shard < file->shard_count; shard++)
        for (uint32_t i = 0; i < safetensors_tensor_count(file->shards[shard]); i++) {
            const struct safetensors_tensor *tensor = safetensors_tensor_at(file->shards[shard], i);
            struct model_file_tensor *view = &file->tensors[at++];
            *view = (struct model_file_tensor){
                .name = tensor->name,
                .type_name = tensor->type_name,
                .type = number_of_type(tensor->type),
                .extent = {1, 1, 1, 1},
                .bytes = tensor->bytes,
                .content = safetensors_tensor_bytes(file->shards[shard], tensor),
                .shard = shard,
                .index = i,
            };
            for (uint32_t j = 0; j < tensor->dimensions; j++)
                view->extent[j] = tensor->extent[tensor->dimensions - 1 - j];
        }
    CHECK(at == file->tensor_count);
}

static enum status view_tensors(struct model_file *file, struct text *why)
{
    file->tensor_count = file->gguf != NULL ? gguf_tensor_count(file->gguf) : 0;
    for (uint32_t i = 0; i < file->shard_count; i++)
        file->tensor_count += safetensors_tensor_count(file->shards[i]);
    file->tensors = calloc((size_t)file->tensor_count + 1, sizeof *file->tensors);
    file->by_name = calloc((size_t)file->tensor_count + 1, sizeof *file->by_name);
    if (file->tensors == NULL || file->by_name == NULL)
        return STATUS_OUT_OF_MEMORY;
    if (file->gguf != NULL)
        view_gguf(file);
    else
        view_shards(file);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->tensor_count, sizeof *file->by_name, compare_names);
    for (uint32_t i = 1; i < file->tensor_count; i++)
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0)
            return text_refuse(why, STATUS_BAD_FILE, "tensor", file->by_name[i]->name,
                               "lies in two files");
    return STATUS_OK;
}

/* ---- The files of a directory ---- */

struct directory {
    const char *path;
    struct model_file *file;
    struct text *why;
};

/* The reason of a file within the directory begins with its name. */
static enum status refuse_file(const struct directory *directory, enum status status,
                               const char *name, const struct reason *reason)
{
    text_set(directory->why, "%s: %s", name,
             reason->text.length > 0 ? reason->storage : status_text(status));
    return status;
}

static enum status path_of(const struct directory *directory, const char *name,
                           char out_path[PATH_BYTES])
{
    int length = snprintf(out_path, PATH_BYTES, "%s/%s", directory->path, name);
    if (length > 0 && length < PATH_BYTES)
        return STATUS_OK;
    text_set(directory->why, "--model: the path of its %s exceeds %d bytes", name, PATH_BYTES - 1);
    return STATUS_INVALID;
}

/* A link whose target is missing counts: what it stands for was not downloaded, and opening it says
 * so. */
static bool has_file(const struct directory *directory, const char *name)
{
    char path[PATH_BYTES];
    struct stat entry;
    return path_of(directory, name, path) == STATUS_OK &&
           (lstat(path, &entry) == 0 || errno != ENOENT);
}

/* Maps one of the JSON files. */
static enum status map_json(const struct directory *directory, const char *name, size_t bytes_max,
                            struct mapped_file *out_file)
{
    char path[PATH_BYTES];
    struct reason reason;
    enum status status = path_of(directory, name, path);
    if (status != STATUS_OK)
        return status;
    status = mapped_file_open(path, out_file, reason_init(&reason));
    if (status == STATUS_OK && out_file->length > bytes_max) {
        text_set(&reason.text, "has %zu bytes; at most %zu are read", out_file->length, bytes_max);
        mapped_file_close(out_file);
        status = STATUS_TOO_LARGE;
    }
    return status == STATUS_OK ? status : refuse_file(directory, status, name, &reason);
}

static enum status open_config(const struct directory *directory)
{
    struct mapped_file config = {0}, generation = {0};
    enum status status = map_json(directory, CONFIG, CONFIG_BYTES_MAX, &config);
    if (status == STATUS_OK && has_file(directory, GENERATION))
        status = map_json(directory, GENERATION, CONFIG_BYTES_MAX, &generation);
    if (status == STATUS_OK) {
        const struct model_config_source source = {config.bytes, config.length, generation.bytes,
                                                   generation.length};
        status = model_config_read(&source, &directory->file->config, directory->why);
    }
    mapped_file_close(&config);
    mapped_file_close(&generation);
    return status;
}

static enum status open_shard(const struct directory *directory, const char *name)
{
    char path[PATH_BYTES];
    struct reason reason;
    struct model_file *file = directory->file;
    enum status status = path_of(directory, name, path);
    if (status != STATUS_OK)
        return status;
    status = safetensors_open(path, &file->shards[file->shard_count], reason_init(&reason));
    if (status != STATUS_OK)
        return refuse_file(directory, status, name, &reason);
    file->shard_count++;
    return STATUS_OK;
}

/* A plain name of a file of tensors: an index must not lead out of its directory. */
static bool names_shard(const char *name)
{
    size_t length = strlen(name), suffix = sizeof SUFFIX - 1;
    return length > suffix && length <= FILE_NAME_BYTES_MAX && name[0] != '.' &&
           strchr(name, '/') == NULL && strcmp(name + length - suffix, SUFFIX) == 0;
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of all shards, ascending, each once. `names` has room for every entry of the map. */
static enum status list_shards(const struct directory *directory, const json_t *map,
                               const char **names, uint32_t *out_count)
{
    const char *tensor;
    json_t *value;
    size_t entries = 0, count = 0;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || !names_shard(name)) {
            text_set(directory->why, INDEX ": tensor ");
            text_append_quoted(directory->why, tensor, strlen(tensor), 64);
            text_format(directory->why, " is not in a file of this directory named *%s", SUFFIX);
            return STATUS_BAD_FILE;
        }
        names[entries++] = name;
    }
    if (entries > 0)
        qsort(names, entries, sizeof *names, compare_words);
    for (size_t i = 0; i < entries; i++)
        if (i == 0 || strcmp(names[i], names[count - 1]) != 0)
            names[count++] = names[i];
    if (count == 0 || count > MODEL_FILE_SHARDS_MAX) {
        text_set(directory->why, INDEX ": names %zu files; 1 to %d are read", count,
                 MODEL_FILE_SHARDS_MAX);
        return STATUS_TOO_LARGE;
    }
    *out_count = (uint32_t)count;
    return STATUS_OK;
}

/* Every tensor of the index lies where it says. That no shard holds a tensor beside them follows
 * from the counts, as no tensor lies in two files. */
static enum status check_index(const struct directory *directory, const json_t *map,
                               const char *const *names)
{
    const char *tensor;
    json_t *value;
    const struct model_file *file = directory->file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const struct model_file_tensor *found = find_name(file, tensor);
        const char *name = json_string_value(value);
        if (found == NULL || strcmp(names[found->shard], name) != 0) {
            text_set(directory->why, INDEX ": tensor ");
            text_append_quoted(directory->why, tensor, strlen(tensor), 64);
            text_format(directory->why, " is not in %s", name);
            return STATUS_BAD_FILE;
        }
    }
    if (file->tensor_count != json_object_size(map)) {
        text_set(directory->why, INDEX ": names %zu tensors, but its files hold %u",
                 json_object_size(map), file->tensor_count);
        return STATUS_BAD_FILE;
    }
    return STATUS_OK;
}

static enum status open_listed(const struct directory *directory, const json_t *map)
{
    uint32_t count = 0;
    struct model_file *file = directory->file;
    const char **names = calloc(json_object_size(map) + 1, sizeof *names);
    if (names == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status = list_shards(directory, map, names, &count);
    if (status == STATUS_OK) {
        file->shards = calloc(count, sizeof *file->shards);
        status = file->shards == NULL ? STATUS_OUT_OF_MEMORY : STATUS_OK;
    }
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        status = open_shard(directory, names[i]);
    if (status == STATUS_OK)
        status = view_tensors(file, directory->why);
    if (status == STATUS_OK)
        status = check_index(directory, map, names);
    free(names);
    return status;
}

static enum status open_index(const struct directory *directory)
{
    json_t *root = NULL;
    struct mapped_file index = {0};
    struct json_input map = {0};
    enum status status = map_json(directory, INDEX, INDEX_BYTES_MAX, &index);
    if (status == STATUS_OK)
        status = json_input_parse(index.bytes, index.length, INDEX, &root, directory->why);
    mapped_file_close(&index);
    if (status == STATUS_OK) {
        const struct json_input input = {root, INDEX};
        status = json_input_object(&input, "weight_map", &map, directory->why);
        status = status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
    }
    if (status == STATUS_OK)
        status = open_listed(directory, map.object);
    json_decref(root);
    return status;
}

static enum status open_tensors(const struct directory *directory)
{
    struct model_file *file = directory->file;
    if (has_file(directory, ONE_FILE)) {
        file->shards = calloc(1, sizeof *file->shards);
        if (file->shards == NULL)
            return STATUS_OUT_OF_MEMORY;
        enum status status = open_shard(directory, ONE_FILE);
        return status == STATUS_OK ? view_tensors(file, directory->why) : status;
    }
    if (has_file(directory, INDEX))
        return open_index(directory);
    text_set(directory->why, "the directory has neither " ONE_FILE " nor " INDEX);
    return STATUS_NOT_FOUND;
}

static enum status open_directory(const char *path, struct model_file *file, struct text *why)
{
    const struct directory directory = {path, file, why};
    file->kind = MODEL_FILE_DIRECTORY;
    file->tokenizer_json = has_file(&directory, TOKENIZER);
    enum status status = open_config(&directory);
    return status == STATUS_OK ? open_tensors(&directory) : status;
}

/* ---- Opening ---- */

static enum status take_gguf(enum status status, struct model_file *file, struct text *why)
{
    file->kind = MODEL_FILE_GGUF;
    return status == STATUS_OK ? view_tensors(file, why) : status;
}

/* Hands out `file`, or closes it. */
static enum status hand_out(enum status status, struct model_file *file,
                            struct model_file **out_file)
{
    if (status == STATUS_OK)
        *out_file = file;
    else
        model_file_close(file);
    return status;
}

enum status model_file_open(const char *path, struct model_file **out_file, struct text *why)
{
    struct stat entry;
    const bool is_directory = stat(path, &entry) == 0 && S_ISDIR(entry.st_mode);
    size_t length = strlen(path), suffix = sizeof SUFFIX - 1;
    if (!is_directory && length > suffix && strcmp(path + length - suffix, SUFFIX) == 0) {
        text_set(why, "is one file of a model; give the directory that holds it and " CONFIG);
        return STATUS_UNSUPPORTED;
    }
    struct model_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status;
    if (is_directory)
        status = open_directory(path, file, why);
    else
        status = take_gguf(gguf_open(path, &file->gguf, why), file, why);
    return hand_out(status, file, out_file);
}

enum status model_file_open_memory(const void *bytes, size_t length, struct model_file **out_file,
                                   struct text *why)
{
    struct model_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status = take_gguf(gguf_open_memory(bytes, length, &file->gguf, why), file, why);
    return hand_out(status, file, out_file);
}

enum status model_file_open_parts(const struct model_file_parts *parts,
                                  struct model_file **out_file, struct text *why)
{
    struct model_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return STATUS_OUT_OF_MEMORY;
    file->kind = MODEL_FILE_DIRECTORY;
    file->shards = calloc(1, sizeof *file->shards);
    enum status status = file->shards != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = model_config_read(&parts->config, &file->config, why);
    if (status == STATUS_OK)
        status =
            safetensors_open_memory(parts->tensors, parts->tensors_bytes, &file->shards[0], why);
    if (status == STATUS_OK) {
        file->shard_count = 1;
        status = view_tensors(file, why);
    }
    return hand_out(status, file, out_file);
}

void model_file_close(struct model_file *file)
{
    if (file == NULL)
        return;
    gguf_close(file->gguf);
    for (uint32_t i = 0; i < file->shard_count; i++)
        safetensors_close(file->shards[i]);
    free(file->shards);
    free(file->tensors);
    free(file->by_name);
    free(file);
}

/* ---- Questions ---- */

enum model_file_kind model_file_kind_of(const struct model_file *file)
{
    return file->kind;
}

const struct gguf *model_file_gguf(const struct model_file *file)
{
    return file->gguf;
}

const struct model_config *model_file_config(const struct model_file *file)
{
    return file->kind == MODEL_FILE_DIRECTORY ? &file->config : NULL;
}

bool model_file_has_tokenizer_json(const struct model_file *file)
{
    return file->tokenizer_json;
}

uint32_t model_file_tensor_count(const struct model_file *file)
{
    return file->tensor_count;
}

const struct model_file_tensor *model_file_tensor_at(const struct model_file *file, uint32_t index)
{
    CHECK(index < file->tensor_count);
    return &file->tensors[index];
}

const struct model_file_tensor *model_file_find(const struct model_file *file,
                                                enum model_tensor tensor, uint32_t layer)
{
    char name[MODEL_TENSOR_NAME_BYTES];
    return model_tensor_name(file->kind, tensor, layer, name) ? find_name(file, name) : NULL;
}

void model_file_drop(const struct model_file *file, const struct model_file_tensor *tensor)
{
    if (file->gguf != NULL)
        gguf_tensor_drop(file->gguf, gguf_tensor_at(file->gguf, tensor->index));
    else
        safetensors_tensor_drop(file->shards[tensor->shard],
                                safetensors_tensor_at(file->shards[tensor->shard], tensor->index));
}
