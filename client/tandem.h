/* Tandem client library: text generation by the coordinator of this host, streamed and resumable.
 *
 *     struct tandem *tandem;
 *     struct tandem_error error;
 *     if (tandem_open(NULL, &tandem, &error) != TANDEM_OK)
 *         return fprintf(stderr, "%s\n", error.message), 1;
 *     struct tandem_message question = {.role = "user", .content = "Why is the sky blue?"};
 *     struct tandem_request request = {.messages = &question, .message_count = 1};
 *     tandem_generate(tandem, &request, print_piece, NULL, NULL, &error);
 *     tandem_close(tandem);
 *
 * How it works. Nothing is ever pushed: the library asks for what lies past its two cursors (tokens
 * and bytes seen so far), the coordinator answers when there is something. So a slow reader costs
 * nothing, and a stream survives a cut connection, a busy coordinator and a replaced worker: the
 * same question is asked again, with the same cursors. Every exchange of this library may be
 * repeated without harm; `submit` too, because a request is known by its id. A *restarted
 * coordinator* knows none of the old requests: the answer is TANDEM_REFUSED with code "not_found",
 * and the caller decides whether to submit again.
 *
 * Time. An exchange is repeated until `patience_ms` is over, then it fails with TANDEM_UNAVAILABLE
 * (no connection) or TANDEM_TIMEOUT (connected, no answer). tandem_open does not wait: without a
 * coordinator it fails at once, after 10 s with one that hangs. No call blocks longer than its own
 * max_wait_ms plus the patience.
 *
 * Threads. One `struct tandem` may be used by any number of threads at the same time, but
 * tandem_close must be the last call. One `struct tandem_stream` belongs to one thread at a time;
 * to cancel from another thread call tandem_cancel with the id. Callbacks run on the calling
 * thread.
 *
 * Processes. nng starts about a dozen threads in tandem_open and does not survive a fork: call
 * tandem_open after fork, or exec at once. Signal masks of those threads are those of the caller.
 *
 * Memory. Arguments are borrowed until the call returns. Results say whose they are: "borrowed"
 * ends with the next call on the same object, "freed by the caller" ends with tandem_free. On
 * failure out-parameters are untouched. Every free and close accepts NULL. Text has no terminating
 * NUL unless its type is `const char *` without a length beside it.
 *
 * Zero is "not given": a zeroed struct asks for the defaults of the coordinator. Structs may grow
 * at their end before version 1.0: compile with the library that you link. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tandem_result {
    TANDEM_OK = 0,
    TANDEM_REFUSED,       /* the coordinator answered with an error: see error.code */
    TANDEM_NOT_PERMITTED, /* the socket belongs to somebody else */
    TANDEM_UNAVAILABLE,   /* no coordinator: not started, or gone for longer than the patience */
    TANDEM_TIMEOUT,       /* connected, but no answer within the patience */
    TANDEM_INVALID,       /* an argument is wrong, error.field names it; nothing was sent */
    TANDEM_TOO_LARGE,     /* the message exceeds TANDEM_FRAME_BYTES_MAX; nothing was sent */
    TANDEM_BAD_REPLY,     /* the answer is not what this version of the protocol allows */
    TANDEM_NO_MEMORY,     /* also: threads or descriptors are exhausted */
};

/* What went wrong. Filled whenever a call does not return TANDEM_OK; a NULL `error` is accepted.
 * `code` is for programs. From the coordinator (TANDEM_REFUSED): invalid_request, too_large,
 * prompt_too_long, unauthorized, rate_limited, overloaded, draining, idempotency_conflict,
 * poisoned, numeric_error, deadline_exceeded, cancelled, journal_full, unsupported_version,
 * not_found, internal, unsupported. From this library: unavailable, not_permitted, timeout,
 * invalid_request, too_large, bad_reply, no_memory. Be ready for codes that this list does not
 * have. */
struct tandem_error {
    char code[32];
    char field[64];    /* the field that is to blame, such as "stop[3]", or "" */
    char message[512]; /* one sentence for humans */
    bool has_limit;    /* `limit` is the bound that was passed */
    double limit;
    uint64_t retry_after_ms; /* a hint with overloaded, rate_limited and draining; else 0 */
    char instance[33];       /* with not_found: of the coordinator; another one: it was restarted */
};

/* ---- Connection ---------------------------------------------------------------------------- */

enum {
    TANDEM_FRAME_BYTES_MAX = 2 * 1024 * 1024, /* of one message; a larger one would be cut off */
    TANDEM_ID_BYTES_MAX = 64,                 /* of a request id */
    TANDEM_STOPS_MAX = 16,                    /* stop strings, of at most 64 bytes each */
    TANDEM_WAIT_MS_MAX = 20000,               /* of one call that waits for news */
};

struct tandem; /* opaque: one connection */

struct tandem_settings {
    /* Directory of the coordinator's sockets. NULL: $TANDEM_RUN_DIR; without it the first of
     * $XDG_RUNTIME_DIR/tandem and /run/tandem where a coordinator answers. A directory whose socket
     * path exceeds the 107 bytes that the system allows is TANDEM_INVALID. */
    const char *run_dir;
    uint32_t patience_ms; /* 0: 15,000; how long an exchange is repeated before it fails */
    /* Optional: called (rarely) when an exchange is about to be repeated; `why` is one sentence. */
    void (*on_retry)(void *context, const char *why);
    void *context;
};

/* Connects. `settings` may be NULL. */
enum tandem_result tandem_open(const struct tandem_settings *settings, struct tandem **out_tandem,
                               struct tandem_error *error);
/* Requests that are still running are not cancelled by this; the coordinator ends a request that
 * nobody asked about for 30 s, unless it was submitted with `detach`. */
void tandem_close(struct tandem *tandem);
/* The directory that tandem_open found; borrowed until tandem_close. */
const char *tandem_run_dir(const struct tandem *tandem);

/* ---- Request ------------------------------------------------------------------------------- */

/* `content` without `content_bytes` ends at its NUL. Content never becomes a special token. */
struct tandem_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t content_bytes;
};

struct tandem_request {
    /* The caller's name for the request, 1 to 64 bytes, NUL-terminated; NULL: 128 random bits in
     * hexadecimal. The same id with the same body is the same request and does not run twice. */
    const char *id;

    /* Exactly one of the three. Text is UTF-8. Special tokens written out in `prompt` are special
     * unless `plain_text`; ids are taken as they are. */
    const char *prompt;
    size_t prompt_bytes; /* 0: `prompt` ends at its NUL */
    const uint32_t *ids;
    size_t id_count;
    const struct tandem_message *messages;
    size_t message_count;

    /* Sampling, in this order: temperature (0: greedy), the top_k best (0: off), the smallest set
     * of probability top_p (up to 1; 0: off), at least min_p times the best (0: off). */
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    bool has_seed; /* false: the coordinator draws one and tells it in tandem_accepted */
    uint64_t seed;

    uint32_t max_tokens;      /* 0: what the context leaves */
    const char *const *stops; /* NUL-terminated; the text ends before the first that appears */
    size_t stop_count;
    const uint32_t *stop_ids; /* tokens that end the text like the end-of-sequence token */
    size_t stop_id_count;
    uint64_t deadline_ms; /* 0: none; from submission to the last token */
    bool ignore_eos;      /* go on after the end-of-sequence token */
    bool plain_text;      /* no special tokens in `prompt` */
    bool detach;          /* keep running although nobody asks for the output */
};

enum tandem_state {
    TANDEM_STATE_UNKNOWN = 0, /* a state that this library does not know yet */
    TANDEM_TOKENIZING,
    TANDEM_QUEUED, /* waits for a place, or for a worker */
    TANDEM_RUNNING,
    TANDEM_PREEMPTED, /* gave its memory to an older request; goes on later by itself */
    TANDEM_FINISHED,
};

struct tandem_accepted {
    const char *id;    /* borrowed until tandem_stream_close */
    uint64_t sequence; /* the order of submission */
    uint64_t seed;     /* in use: the same seed gives the same text */
    uint32_t prompt_tokens;
    uint32_t queue_position; /* requests before it; 0: next, or running */
    enum tandem_state state; /* other than queued: the id was known already */
};

/* The one outcome of a request. */
struct tandem_finish {
    bool failed;       /* it ended with an error */
    char reason[32];   /* "stop", "length", "cancelled", or the code of the error */
    char message[512]; /* of the error; else "" */
    uint32_t prompt_tokens;
    uint32_t completion_tokens; /* with the one that completed a stop string */
    uint64_t recomputed_tokens; /* after preemptions and lost workers */
    uint32_t preemptions;
    uint32_t workers_lost;
    uint64_t tokenize_ns;    /* submission to ids */
    uint64_t queue_ns;       /* ids to first step */
    uint64_t first_token_ns; /* submission to first token */
    uint64_t total_ns;       /* submission to the end */
    bool has_logits_hash;    /* only with the worker's --debug-logits-hash */
    uint64_t logits_hash;
};

/* News of a request. Text is released in whole UTF-8 sequences wherever the model wrote UTF-8, and
 * it may hold control characters: escape them before a terminal sees them. Tokens may come without
 * text (one that only begins a character). Borrowed until the next call on the stream. */
struct tandem_output {
    const uint32_t *tokens;
    size_t token_count;
    const char *text;
    size_t text_bytes;
    enum tandem_state state;
    uint32_t queue_position;     /* while queued: requests before it */
    uint32_t prompt_tokens;      /* 0 while tokenizing */
    uint32_t prompt_tokens_done; /* of them read so far */
    bool worker_ready;           /* false: everything waits for a worker */
    bool finished;               /* then `finish` is set and nothing follows */
    struct tandem_finish finish;
};

/* ---- Streaming ----------------------------------------------------------------------------- */

struct tandem_stream; /* opaque: one reader of one request, with its cursors */

/* Draws an id as tandem_submit does, for a caller that must know it before: 32 digits and a NUL. */
enum tandem_result tandem_draw_id(char out_id[33], struct tandem_error *error);

/* Submits and waits for acceptance. Close the stream before its `tandem`. */
enum tandem_result tandem_submit(struct tandem *tandem, const struct tandem_request *request,
                                 struct tandem_stream **out_stream, struct tandem_error *error);
/* A reader of a request that is known already, from these cursors on (0, 0: from the beginning);
 * for a program that was restarted, or a second reader. Asks nothing yet. `accepted` knows only the
 * id. */
enum tandem_result tandem_resume(struct tandem *tandem, const char *id, uint64_t from_token,
                                 uint64_t from_byte, struct tandem_stream **out_stream,
                                 struct tandem_error *error);
/* Borrowed until tandem_stream_close. */
const struct tandem_accepted *tandem_stream_accepted(const struct tandem_stream *stream);
/* Waits at most `max_wait_ms` (<= TANDEM_WAIT_MS_MAX; 0: do not wait) for something past the
 * cursors and moves them. TANDEM_OK without tokens, text and `finished` means: no news yet, ask
 * again. `hold_tokens` > 1 asks for news only when that many tokens are there, or the end: a fast
 * stream then costs fewer answers. After the finish it returns the finish again, with no text. A
 * stream after an error stays where it was: the call may be repeated. */
enum tandem_result tandem_next(struct tandem_stream *stream, uint32_t max_wait_ms,
                               uint32_t hold_tokens, struct tandem_output *out_output,
                               struct tandem_error *error);
/* Where the stream stands: give both to tandem_resume. */
void tandem_stream_cursors(const struct tandem_stream *stream, uint64_t *out_from_token,
                           uint64_t *out_from_byte);
/* Ends the reader, not the request: call tandem_cancel first where the rest is not wanted. */
void tandem_stream_close(struct tandem_stream *stream);

/* Returns true to go on, false to cancel the request (it then finishes as "cancelled"). */
typedef bool (*tandem_piece)(void *context, const struct tandem_output *output);

/* All of it in one call: submits, calls `piece` (may be NULL) for every news, returns after the
 * last. `out_finish` may be NULL. A request that ended with an error code is TANDEM_REFUSED, with
 * that code in `error`; stop, length and cancelled are TANDEM_OK. */
enum tandem_result tandem_generate(struct tandem *tandem, const struct tandem_request *request,
                                   tandem_piece piece, void *context,
                                   struct tandem_finish *out_finish, struct tandem_error *error);

/* Ends a request, from any thread or process. Whoever reads it gets the text so far, then the
 * finish. TANDEM_OK also when it had finished before; TANDEM_REFUSED with "not_found" for an
 * unknown id. */
enum tandem_result tandem_cancel(struct tandem *tandem, const char *id, struct tandem_error *error);

/* ---- Questions ----------------------------------------------------------------------------- */

struct tandem_status {
    uint64_t sequence;
    uint64_t seed;
    enum tandem_state state;
    uint32_t queue_position;
    uint32_t prompt_tokens;
    uint32_t prompt_tokens_done;
    uint32_t completion_tokens;
    uint64_t text_bytes;
    uint32_t preemptions;
    uint64_t age_ms;
    bool worker_ready;
    struct tandem_finish finish; /* when `state` is TANDEM_FINISHED; else zero */
};
enum tandem_result tandem_status(struct tandem *tandem, const char *id,
                                 struct tandem_status *out_status, struct tandem_error *error);
/* "tokenizing", "queued" and so on; "unknown". */
const char *tandem_state_name(enum tandem_state state);

/* Live: it answers. Ready: a request submitted now would be worked on now. */
struct tandem_health {
    bool live;
    bool ready;
    bool draining;      /* it is stopping */
    char reasons[1280]; /* why it is not ready, or ready but degraded; joined by ", " */
    char instance[33];  /* hexadecimal; another one after each start of the coordinator */
    uint64_t epoch;     /* counts the workers that were attached */
    uint64_t uptime_ms;
};
enum tandem_result tandem_health(struct tandem *tandem, struct tandem_health *out_health,
                                 struct tandem_error *error);

/* Counters since the start of the coordinator, and gauges; docs/PROTOCOL.md explains each name. */
struct tandem_figure {
    const char *name; /* static */
    uint64_t value;
};
/* `out_figures` is freed by the caller. */
enum tandem_result tandem_stats(struct tandem *tandem, struct tandem_figure **out_figures,
                                size_t *out_count, struct tandem_error *error);

struct tandem_model {
    char name[129];
    char architecture[129];
    char arithmetic[129]; /* equal text: equal bits; "" before the first worker */
    char hash[33];        /* of hyperparameters, vocabulary and tensor directory */
    uint32_t context;     /* tokens, prompt and completion together */
    uint32_t vocabulary;  /* token ids are below this */
    bool chat_template;   /* `messages` are possible */
    uint32_t slots;       /* requests that run at the same time */
    uint64_t pool_tokens; /* tokens of all running requests together */
    uint64_t prompt_bytes_max;
    uint64_t queue_requests_max;
    uint64_t kept_ms; /* how long a finished request is still answered */
    bool ids_only;    /* no tokenizer: requests need `ids`, answers have tokens and no text */
};
/* The models that are served; version 1 serves one. `out_models` is freed by the caller. */
enum tandem_result tandem_models(struct tandem *tandem, struct tandem_model **out_models,
                                 size_t *out_count, struct tandem_error *error);

/* The ids of `prompt`, or of `messages` through the chat template; of the rest of the request only
 * `plain_text` counts. `out_ids` is freed by the caller. */
enum tandem_result tandem_tokenize(struct tandem *tandem, const struct tandem_request *request,
                                   uint32_t **out_ids, size_t *out_count,
                                   struct tandem_error *error);
/* The bytes of ids (not always valid UTF-8; NUL-terminated besides). Freed by the caller. */
enum tandem_result tandem_detokenize(struct tandem *tandem, const uint32_t *ids, size_t id_count,
                                     char **out_bytes, size_t *out_count,
                                     struct tandem_error *error);
/* Gives back what a call left with "freed by the caller". */
void tandem_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif
