/* What clients and the coordinator say to each other over nng REQ/REP: one request, one answer,
 * each one msgpack map. Field numbers are never re-used; a changed meaning gets a new number. Rules
 * beyond the field tables: docs/PROTOCOL.md. */
#ifndef TANDEM_PROTO_CLIENT_MESSAGES_H
#define TANDEM_PROTO_CLIENT_MESSAGES_H

#include "proto/error_codes.h"
#include "proto/limits.h"
#include "proto/wire.h"

/* clang-format off */

/* ---- Enums: X(enumerator, number, name, text) ---- */

#define REQUEST_STATE_LIST(X) \
    X(REQUEST_STATE_TOKENIZING, 1, "tokenizing", "known, its text is being turned into ids") \
    X(REQUEST_STATE_QUEUED, 2, "queued", "waits for a slot, for blocks or for a worker") \
    X(REQUEST_STATE_RUNNING, 3, "running", "holds a slot") \
    X(REQUEST_STATE_PREEMPTED, 4, "preempted", "gave its blocks to an older request; goes on by itself") \
    X(REQUEST_STATE_FINISHED, 5, "finished", "has its one outcome")

#define FINISH_REASON_LIST(X) \
    X(FINISH_REASON_STOP, 1, "stop", "end of sequence, a stop string or a stop token") \
    X(FINISH_REASON_LENGTH, 2, "length", "max_tokens or the context is reached") \
    X(FINISH_REASON_CANCELLED, 3, "cancelled", "a client cancelled, or nobody asked for the output") \
    X(FINISH_REASON_ERROR, 4, "error", "`error` says which")

#define DURABILITY_LIST(X) \
    X(DURABILITY_NONE, 1, "none", "lost with the coordinator's process") \
    X(DURABILITY_WRITTEN, 2, "written", "survives the process, not the machine") \
    X(DURABILITY_SYNCED, 3, "synced", "survives the machine")

enum request_state { REQUEST_STATE_UNKNOWN = 0, REQUEST_STATE_LIST(WIRE_ENUM_MEMBER) };
enum finish_reason { FINISH_REASON_UNKNOWN = 0, FINISH_REASON_LIST(WIRE_ENUM_MEMBER) };
enum durability { DURABILITY_UNKNOWN = 0, DURABILITY_LIST(WIRE_ENUM_MEMBER) };

/* ---- Requests: X(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text) ---- */

#define VERSION_FIELD(X, T) \
    X(T, 2, version, U32, none, OPTIONAL, 0, UINT32_MAX, "protocol version of the client; 1 if absent")

#define CHAT_MESSAGE_FIELDS(X, T) \
    X(T, 1, role, TEXT, none, REQUIRED, 1, LIMIT_CHAT_ROLE_BYTES, "system, user or assistant") \
    X(T, 2, content, TEXT, none, REQUIRED, 0, LIMIT_CLIENT_FRAME_BYTES, "text; never becomes a special token")

#define CLIENT_SUBMIT_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 3, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "the client's choice; names the request and makes submit idempotent") \
    X(T, 4, prompt, TEXT, none, OPTIONAL, 1, LIMIT_CLIENT_FRAME_BYTES, "text; exactly one of prompt, ids and messages is given") \
    X(T, 5, ids, TOKENS, none, OPTIONAL, 1, LIMIT_CONTEXT_TOKENS, "token ids") \
    X(T, 6, messages, LIST, chat_message, OPTIONAL, 1, LIMIT_CHAT_MESSAGES, "a conversation for the model's chat template") \
    X(T, 7, max_tokens, U32, none, OPTIONAL, 1, LIMIT_CONTEXT_TOKENS, "tokens to generate at most; context - prompt if absent") \
    X(T, 8, temperature, F32, none, DEFAULT, 0, LIMIT_TEMPERATURE, "0 if absent: greedy, ties to the lowest id") \
    X(T, 9, top_k, U32, none, DEFAULT, 0, LIMIT_VOCABULARY, "keep the k most likely; 0 or absent: all") \
    X(T, 10, top_p, F32_ABOVE, none, OPTIONAL, 0, 1, "keep the smallest set with this probability; 1 if absent: all") \
    X(T, 11, min_p, F32, none, DEFAULT, 0, 1, "keep what has at least this share of the best; 0 if absent: all") \
    X(T, 12, seed, U64, none, OPTIONAL, 0, UINT64_MAX, "drawn at admission and returned if absent") \
    X(T, 13, stop, TEXT_LIST, none, DEFAULT, 1, LIMIT_STOP_BYTES, "the text ends before the first of these; at most 16") \
    X(T, 14, stop_token_ids, TOKENS, none, DEFAULT, 0, LIMIT_STOP_TOKENS, "tokens that end the request") \
    X(T, 15, ignore_eos, BOOL, none, DEFAULT, 0, 1, "do not end at the model's end of sequence") \
    X(T, 16, deadline_ms, U64, none, OPTIONAL, 1, LIMIT_DEADLINE_MS, "from now; afterwards the request ends deadline_exceeded") \
    X(T, 17, detach, BOOL, none, DEFAULT, 0, 1, "go on although nobody asks for the output") \
    X(T, 18, parse_special, BOOL, none, OPTIONAL, 0, 1, "text of special tokens in `prompt` becomes those tokens; true if absent")

#define CLIENT_NEXT_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 3, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit") \
    X(T, 4, from_token, U64, none, DEFAULT, 0, UINT32_MAX, "tokens seen so far") \
    X(T, 5, from_byte, U64, none, DEFAULT, 0, UINT32_MAX, "bytes of text seen so far") \
    X(T, 6, hold_tokens, U32, none, DEFAULT, 0, LIMIT_CONTEXT_TOKENS, "answer only when that many new tokens are there, or the end; 0 is 1") \
    X(T, 7, max_wait_ms, U32, none, DEFAULT, 0, LIMIT_WAIT_MS, "longest wait for news; 0: answer at once")

#define CLIENT_CANCEL_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 3, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit")

#define CLIENT_STATUS_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 3, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit")

#define CLIENT_STATS_FIELDS(X, T) VERSION_FIELD(X, T)
#define CLIENT_HEALTH_FIELDS(X, T) VERSION_FIELD(X, T)
#define CLIENT_MODELS_FIELDS(X, T) VERSION_FIELD(X, T)

#define CLIENT_TOKENIZE_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 4, prompt, TEXT, none, OPTIONAL, 0, LIMIT_CLIENT_FRAME_BYTES, "text; exactly one of prompt and messages is given") \
    X(T, 6, messages, LIST, chat_message, OPTIONAL, 1, LIMIT_CHAT_MESSAGES, "a conversation for the model's chat template") \
    X(T, 18, parse_special, BOOL, none, OPTIONAL, 0, 1, "as in submit; true if absent")

#define CLIENT_DETOKENIZE_FIELDS(X, T) \
    VERSION_FIELD(X, T) \
    X(T, 5, ids, TOKENS, none, REQUIRED, 0, LIMIT_CLIENT_FRAME_BYTES / 4, "token ids")

/* ---- Answers ---- */

#define CLIENT_ERROR_FIELDS(X, T) \
    X(T, 2, code, ENUM, error_code, REQUIRED, 0, 0, "what kind") \
    X(T, 3, field, TEXT, none, OPTIONAL, 1, LIMIT_ERROR_FIELD_BYTES, "the field of the request that is to blame") \
    X(T, 4, message, TEXT, none, REQUIRED, 0, LIMIT_ERROR_MESSAGE_BYTES, "one sentence for humans: what was given, what is allowed") \
    X(T, 5, limit, F64, none, OPTIONAL, 0, 1e300, "the bound that was passed") \
    X(T, 6, retry_after_ms, U64, none, OPTIONAL, 0, UINT64_MAX, "when another try makes sense") \
    X(T, 7, instance, ID128, none, OPTIONAL, 0, 0, "with not_found: another one than before means a restart")

#define CLIENT_ACCEPTED_FIELDS(X, T) \
    X(T, 2, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit") \
    X(T, 3, sequence, U64, none, REQUIRED, 0, UINT64_MAX, "order of submission") \
    X(T, 4, seed, U64, none, REQUIRED, 0, UINT64_MAX, "in use") \
    X(T, 5, prompt_tokens, U32, none, REQUIRED, 0, LIMIT_CONTEXT_TOKENS, "ids of the prompt") \
    X(T, 6, queue_position, U32, none, REQUIRED, 0, UINT32_MAX, "requests before it; 0: next or running") \
    X(T, 7, durability, ENUM, durability, REQUIRED, 0, 0, "what the acceptance survives") \
    X(T, 8, state, ENUM, request_state, REQUIRED, 0, 0, "state now; another than queued when the id was known already") \
    X(T, 9, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator")

#define CLIENT_USAGE_FIELDS(X, T) \
    X(T, 1, prompt_tokens, U32, none, REQUIRED, 0, UINT32_MAX, "ids of the prompt") \
    X(T, 2, completion_tokens, U32, none, REQUIRED, 0, UINT32_MAX, "accepted tokens, with the one that completed a stop string") \
    X(T, 3, recomputed_tokens, U64, none, DEFAULT, 0, UINT64_MAX, "positions computed again after preemptions and lost workers") \
    X(T, 4, preemptions, U32, none, DEFAULT, 0, UINT32_MAX, "times it gave its blocks away") \
    X(T, 5, workers_lost, U32, none, DEFAULT, 0, UINT32_MAX, "workers that ended while it ran")

#define CLIENT_TIMINGS_FIELDS(X, T) \
    X(T, 1, tokenize_ns, U64, none, DEFAULT, 0, UINT64_MAX, "submission to ids") \
    X(T, 2, queue_ns, U64, none, DEFAULT, 0, UINT64_MAX, "ids to first plan") \
    X(T, 3, first_token_ns, U64, none, DEFAULT, 0, UINT64_MAX, "submission to first token") \
    X(T, 4, total_ns, U64, none, DEFAULT, 0, UINT64_MAX, "submission to the end")

#define CLIENT_FINISH_FIELDS(X, T) \
    X(T, 1, reason, ENUM, finish_reason, REQUIRED, 0, 0, "why it ended") \
    X(T, 2, usage, GROUP, client_usage, REQUIRED, 0, 0, "counts") \
    X(T, 3, timings, GROUP, client_timings, REQUIRED, 0, 0, "durations") \
    X(T, 4, logits_hash, U64, none, OPTIONAL, 0, UINT64_MAX, "hash of all logits rows; only with the worker's --debug-logits-hash") \
    X(T, 5, error, GROUP, client_error, OPTIONAL, 0, 0, "with reason error")

#define CLIENT_OUTPUT_FIELDS(X, T) \
    X(T, 2, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit") \
    X(T, 3, from_token, U64, none, REQUIRED, 0, UINT32_MAX, "index of the first token below") \
    X(T, 4, from_byte, U64, none, REQUIRED, 0, UINT32_MAX, "offset of the text below") \
    X(T, 5, tokens, TOKENS, none, REQUIRED, 0, LIMIT_CONTEXT_TOKENS, "released tokens past the cursor") \
    X(T, 6, text, BLOB, none, REQUIRED, 0, LIMIT_CLIENT_ANSWER_BYTES, "released bytes past the cursor; bin where they are not UTF-8") \
    X(T, 7, state, ENUM, request_state, REQUIRED, 0, 0, "state now") \
    X(T, 8, queue_position, U32, none, DEFAULT, 0, UINT32_MAX, "while queued: requests before it") \
    X(T, 9, prompt_tokens, U32, none, DEFAULT, 0, UINT32_MAX, "ids of the prompt; 0 while tokenizing") \
    X(T, 10, prompt_tokens_done, U32, none, DEFAULT, 0, UINT32_MAX, "of them computed") \
    X(T, 11, worker_ready, BOOL, none, DEFAULT, 0, 1, "a worker is attached and ready") \
    X(T, 12, finish, GROUP, client_finish, OPTIONAL, 0, 0, "once, with the last token and byte")

#define CLIENT_STATUS_ANSWER_FIELDS(X, T) \
    X(T, 2, id, BLOB, none, REQUIRED, 1, LIMIT_REQUEST_ID_BYTES, "of submit") \
    X(T, 3, sequence, U64, none, REQUIRED, 0, UINT64_MAX, "order of submission") \
    X(T, 4, seed, U64, none, REQUIRED, 0, UINT64_MAX, "in use") \
    X(T, 5, state, ENUM, request_state, REQUIRED, 0, 0, "state now") \
    X(T, 6, queue_position, U32, none, DEFAULT, 0, UINT32_MAX, "while queued: requests before it") \
    X(T, 7, prompt_tokens, U32, none, DEFAULT, 0, UINT32_MAX, "ids of the prompt; 0 while tokenizing") \
    X(T, 8, prompt_tokens_done, U32, none, DEFAULT, 0, UINT32_MAX, "of them computed") \
    X(T, 9, completion_tokens, U32, none, DEFAULT, 0, UINT32_MAX, "accepted tokens") \
    X(T, 10, text_bytes, U64, none, DEFAULT, 0, UINT64_MAX, "released bytes") \
    X(T, 11, preemptions, U32, none, DEFAULT, 0, UINT32_MAX, "times it gave its blocks away") \
    X(T, 12, age_ms, U64, none, DEFAULT, 0, UINT64_MAX, "since submission") \
    X(T, 13, worker_ready, BOOL, none, DEFAULT, 0, 1, "a worker is attached and ready") \
    X(T, 14, finish, GROUP, client_finish, OPTIONAL, 0, 0, "when finished")

/* Counters since the start of the coordinator, and gauges. Every one is a U64: a reader may walk the table. */
#define STATS_FIGURE(X, T, key, name, text) X(T, key, name, U64, none, DEFAULT, 0, UINT64_MAX, text)
#define CLIENT_STATS_ANSWER_FIELDS(X, T) \
    X(T, 2, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator") \
    STATS_FIGURE(X, T, 3, uptime_ms, "since its start") \
    STATS_FIGURE(X, T, 4, epoch, "of the attached worker, or of the last one") \
    STATS_FIGURE(X, T, 10, requests_submitted, "submits that made a request") \
    STATS_FIGURE(X, T, 11, requests_refused, "submits answered with an error") \
    STATS_FIGURE(X, T, 12, requests_repeated, "submits of an id that was known") \
    STATS_FIGURE(X, T, 13, requests_stopped, "finished by stop") \
    STATS_FIGURE(X, T, 14, requests_length, "finished by length") \
    STATS_FIGURE(X, T, 15, requests_cancelled, "finished by cancel") \
    STATS_FIGURE(X, T, 16, requests_failed, "finished with an error code") \
    STATS_FIGURE(X, T, 17, requests_orphaned, "of the cancelled: nobody asked for the output") \
    STATS_FIGURE(X, T, 18, requests_tokenizing, "now") \
    STATS_FIGURE(X, T, 19, requests_queued, "now") \
    STATS_FIGURE(X, T, 20, requests_running, "now") \
    STATS_FIGURE(X, T, 21, requests_preempted, "now") \
    STATS_FIGURE(X, T, 22, requests_kept, "finished, still answered") \
    STATS_FIGURE(X, T, 23, queue_bytes, "held by requests that are not finished") \
    STATS_FIGURE(X, T, 24, polls_parked, "next calls that wait") \
    STATS_FIGURE(X, T, 25, messages_bad, "frames of clients that were refused") \
    STATS_FIGURE(X, T, 30, prompt_tokens, "ids of accepted prompts") \
    STATS_FIGURE(X, T, 31, completion_tokens, "accepted tokens") \
    STATS_FIGURE(X, T, 32, recomputed_tokens, "positions computed again") \
    STATS_FIGURE(X, T, 33, preemptions, "requests that gave their blocks away") \
    STATS_FIGURE(X, T, 40, steps_planned, "plans sent") \
    STATS_FIGURE(X, T, 41, steps_done, "results taken") \
    STATS_FIGURE(X, T, 42, plans_in_flight, "now") \
    STATS_FIGURE(X, T, 43, plans_refused, "by a worker") \
    STATS_FIGURE(X, T, 44, rows_dropped, "result rows without a taker") \
    STATS_FIGURE(X, T, 45, messages_stale, "of an earlier epoch or instance, dropped") \
    STATS_FIGURE(X, T, 46, step_ns_last, "duration of the last step on the worker") \
    STATS_FIGURE(X, T, 50, slots_total, "slots") \
    STATS_FIGURE(X, T, 51, slots_held, "by running requests") \
    STATS_FIGURE(X, T, 52, slots_retiring, "until the worker answered the last plan that names them") \
    STATS_FIGURE(X, T, 53, blocks_total, "physical blocks") \
    STATS_FIGURE(X, T, 54, blocks_free, "now") \
    STATS_FIGURE(X, T, 55, blocks_held, "now") \
    STATS_FIGURE(X, T, 56, blocks_retiring, "now") \
    STATS_FIGURE(X, T, 57, blocks_cached, "now") \
    STATS_FIGURE(X, T, 60, worker_attached, "0 or 1") \
    STATS_FIGURE(X, T, 61, workers_standby, "now") \
    STATS_FIGURE(X, T, 62, workers_attached, "attachments so far") \
    STATS_FIGURE(X, T, 63, workers_lost, "epochs that ended") \
    STATS_FIGURE(X, T, 64, workers_refused, "by name") \
    STATS_FIGURE(X, T, 65, epochs_abandoned, "ended epochs whose process may still live") \
    STATS_FIGURE(X, T, 66, worker_resident_bytes, "memory of the worker's process") \
    STATS_FIGURE(X, T, 67, worker_weights_bytes, "of the model") \
    STATS_FIGURE(X, T, 68, worker_pool_bytes, "of the KV pool, reserved") \
    STATS_FIGURE(X, T, 69, worker_pool_touched_bytes, "of the KV pool, in memory")

#define CLIENT_HEALTH_ANSWER_FIELDS(X, T) \
    X(T, 2, live, BOOL, none, REQUIRED, 0, 1, "it answers") \
    X(T, 3, ready, BOOL, none, REQUIRED, 0, 1, "a request submitted now would be worked on now") \
    X(T, 4, reasons, TEXT_LIST, none, DEFAULT, 1, LIMIT_STOP_BYTES, "why it is not ready, or ready but degraded; short fixed words") \
    X(T, 5, draining, BOOL, none, DEFAULT, 0, 1, "it is stopping") \
    X(T, 6, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator") \
    X(T, 7, epoch, U64, none, DEFAULT, 0, UINT64_MAX, "of the attached worker, or of the last one") \
    X(T, 8, uptime_ms, U64, none, DEFAULT, 0, UINT64_MAX, "since its start")

#define CLIENT_MODEL_FIELDS(X, T) \
    X(T, 1, name, TEXT, none, REQUIRED, 0, LIMIT_NAME_BYTES, "of the model file") \
    X(T, 2, architecture, TEXT, none, REQUIRED, 0, LIMIT_NAME_BYTES, "as the file names it") \
    X(T, 3, metadata_hash, ID128, none, REQUIRED, 0, 0, "of hyperparameters, vocabulary and tensor directory") \
    X(T, 4, context, U32, none, REQUIRED, 0, LIMIT_CONTEXT_TOKENS, "prompt and completion together") \
    X(T, 5, vocabulary, U32, none, REQUIRED, 0, LIMIT_VOCABULARY, "ids are below this") \
    X(T, 6, chat_template, BOOL, none, REQUIRED, 0, 1, "messages are possible") \
    X(T, 7, arithmetic, TEXT, none, DEFAULT, 0, LIMIT_NAME_BYTES, "names the bits; empty before the first worker") \
    X(T, 8, ids_only, BOOL, none, DEFAULT, 0, 1, "there is no tokenizer: prompts are `ids`, answers have tokens and no text")

#define CLIENT_MODELS_ANSWER_FIELDS(X, T) \
    X(T, 2, models, LIST, client_model, REQUIRED, 0, LIMIT_MODELS, "served here") \
    X(T, 3, slots, U32, none, REQUIRED, 0, LIMIT_SLOTS, "requests that run at the same time") \
    X(T, 4, block_tokens, U32, none, REQUIRED, 0, UINT32_MAX, "positions of one KV block") \
    X(T, 5, pool_tokens, U64, none, REQUIRED, 0, UINT64_MAX, "positions that the KV pool holds") \
    X(T, 6, step_tokens, U32, none, REQUIRED, 0, UINT32_MAX, "token budget of one step") \
    X(T, 7, prompt_bytes_max, U64, none, REQUIRED, 0, UINT64_MAX, "text of one request") \
    X(T, 8, frame_bytes_max, U64, none, REQUIRED, 0, UINT64_MAX, "of one message; a larger one is cut off") \
    X(T, 9, queue_requests_max, U64, none, REQUIRED, 0, UINT64_MAX, "requests that are not finished") \
    X(T, 10, queue_bytes_max, U64, none, REQUIRED, 0, UINT64_MAX, "held by them") \
    X(T, 11, kept_requests_max, U64, none, REQUIRED, 0, UINT64_MAX, "finished ones that are still answered") \
    X(T, 12, kept_ms, U64, none, REQUIRED, 0, UINT64_MAX, "for how long") \
    X(T, 13, orphan_ms, U64, none, REQUIRED, 0, UINT64_MAX, "a request nobody asks for is cancelled after this") \
    X(T, 14, wait_ms_max, U32, none, REQUIRED, 0, UINT32_MAX, "longest long poll")

#define CLIENT_TOKENS_FIELDS(X, T) \
    X(T, 2, ids, TOKENS, none, REQUIRED, 0, LIMIT_CLIENT_FRAME_BYTES, "of the text")

#define CLIENT_TEXT_FIELDS(X, T) \
    X(T, 2, text, BLOB, none, REQUIRED, 0, LIMIT_CLIENT_ANSWER_BYTES, "of the ids; bin where it is not UTF-8")

/* ---- Messages: X(number, struct, member, name, FIELDS, text) ---- */

#define CLIENT_REQUEST_LIST(X) \
    X(1, client_submit, submit, "submit", CLIENT_SUBMIT_FIELDS, "Asks for a completion. Answer: accepted.") \
    X(2, client_next, next, "next", CLIENT_NEXT_FIELDS, "Long poll for what lies past two cursors. Answer: output.") \
    X(3, client_cancel, cancel, "cancel", CLIENT_CANCEL_FIELDS, "Ends a request. Answer: output, with the state.") \
    X(4, client_status, status, "status", CLIENT_STATUS_FIELDS, "Where a request stands. Answer: status.") \
    X(5, client_stats, stats, "stats", CLIENT_STATS_FIELDS, "Counters and gauges. Answer: stats.") \
    X(6, client_health, health, "health", CLIENT_HEALTH_FIELDS, "Live and ready. Answer: health.") \
    X(7, client_models, models, "models", CLIENT_MODELS_FIELDS, "Model and limits. Answer: models.") \
    X(8, client_tokenize, tokenize, "tokenize", CLIENT_TOKENIZE_FIELDS, "Ids of a text. Answer: tokens.") \
    X(9, client_detokenize, detokenize, "detokenize", CLIENT_DETOKENIZE_FIELDS, "Bytes of ids. Answer: text.")

#define CLIENT_ANSWER_LIST(X) \
    X(32, client_error, error, "error", CLIENT_ERROR_FIELDS, "The request was not done.") \
    X(33, client_accepted, accepted, "accepted", CLIENT_ACCEPTED_FIELDS, "The request is known and will be worked on.") \
    X(34, client_output, output, "output", CLIENT_OUTPUT_FIELDS, "What lies past the cursors, maybe nothing.") \
    X(35, client_status_answer, status, "status", CLIENT_STATUS_ANSWER_FIELDS, "Where a request stands.") \
    X(36, client_stats_answer, stats, "stats", CLIENT_STATS_ANSWER_FIELDS, "Counters since the start, and gauges.") \
    X(37, client_health_answer, health, "health", CLIENT_HEALTH_ANSWER_FIELDS, "Live and ready, with reasons.") \
    X(38, client_models_answer, models, "models", CLIENT_MODELS_ANSWER_FIELDS, "Model and limits.") \
    X(39, client_tokens, tokens, "tokens", CLIENT_TOKENS_FIELDS, "Answer to tokenize.") \
    X(40, client_text, text, "text", CLIENT_TEXT_FIELDS, "Answer to detokenize.")

/* ---- Structs ---- */

struct chat_message { CHAT_MESSAGE_FIELDS(WIRE_MEMBER, chat_message) };
struct client_submit { CLIENT_SUBMIT_FIELDS(WIRE_MEMBER, client_submit) };
struct client_next { CLIENT_NEXT_FIELDS(WIRE_MEMBER, client_next) };
struct client_cancel { CLIENT_CANCEL_FIELDS(WIRE_MEMBER, client_cancel) };
struct client_status { CLIENT_STATUS_FIELDS(WIRE_MEMBER, client_status) };
struct client_stats { CLIENT_STATS_FIELDS(WIRE_MEMBER, client_stats) };
struct client_health { CLIENT_HEALTH_FIELDS(WIRE_MEMBER, client_health) };
struct client_models { CLIENT_MODELS_FIELDS(WIRE_MEMBER, client_models) };
struct client_tokenize { CLIENT_TOKENIZE_FIELDS(WIRE_MEMBER, client_tokenize) };
struct client_detokenize { CLIENT_DETOKENIZE_FIELDS(WIRE_MEMBER, client_detokenize) };

struct client_error { CLIENT_ERROR_FIELDS(WIRE_MEMBER, client_error) };
struct client_usage { CLIENT_USAGE_FIELDS(WIRE_MEMBER, client_usage) };
struct client_timings { CLIENT_TIMINGS_FIELDS(WIRE_MEMBER, client_timings) };
struct client_finish { CLIENT_FINISH_FIELDS(WIRE_MEMBER, client_finish) };
struct client_accepted { CLIENT_ACCEPTED_FIELDS(WIRE_MEMBER, client_accepted) };
struct client_output { CLIENT_OUTPUT_FIELDS(WIRE_MEMBER, client_output) };
struct client_status_answer { CLIENT_STATUS_ANSWER_FIELDS(WIRE_MEMBER, client_status_answer) };
struct client_stats_answer { CLIENT_STATS_ANSWER_FIELDS(WIRE_MEMBER, client_stats_answer) };
struct client_health_answer { CLIENT_HEALTH_ANSWER_FIELDS(WIRE_MEMBER, client_health_answer) };
struct client_model { CLIENT_MODEL_FIELDS(WIRE_MEMBER, client_model) };
struct client_models_answer { CLIENT_MODELS_ANSWER_FIELDS(WIRE_MEMBER, client_models_answer) };
struct client_tokens { CLIENT_TOKENS_FIELDS(WIRE_MEMBER, client_tokens) };
struct client_text { CLIENT_TEXT_FIELDS(WIRE_MEMBER, client_text) };

/* clang-format on */

/* Value of key 1, `type`. */
enum client_request_type {
    CLIENT_REQUEST_NONE = 0,
    CLIENT_SUBMIT = 1,
    CLIENT_NEXT = 2,
    CLIENT_CANCEL = 3,
    CLIENT_STATUS = 4,
    CLIENT_STATS = 5,
    CLIENT_HEALTH = 6,
    CLIENT_MODELS = 7,
    CLIENT_TOKENIZE = 8,
    CLIENT_DETOKENIZE = 9,
};

enum client_answer_type {
    CLIENT_ANSWER_NONE = 0,
    CLIENT_ANSWER_ERROR = 32,
    CLIENT_ANSWER_ACCEPTED = 33,
    CLIENT_ANSWER_OUTPUT = 34,
    CLIENT_ANSWER_STATUS = 35,
    CLIENT_ANSWER_STATS = 36,
    CLIENT_ANSWER_HEALTH = 37,
    CLIENT_ANSWER_MODELS = 38,
    CLIENT_ANSWER_TOKENS = 39,
    CLIENT_ANSWER_TEXT = 40,
};

/* A request of a client. Decoded: borrows from the frame. */
struct client_request {
    enum client_request_type type;
    bool named; /* the client used names for keys: answer in that style */
    union {
        CLIENT_REQUEST_LIST(WIRE_UNION_MEMBER)
    };
};

/* An answer to a client. Decoded: borrows from the frame. */
struct client_answer {
    enum client_answer_type type;
    bool named; /* to encode: names for keys and enums */
    union {
        CLIENT_ANSWER_LIST(WIRE_UNION_MEMBER)
    };
};

/* Coordinator's side: strict. Also checked here: the version, exactly one of prompt, ids and
 * messages. `named` is set on failure too, as far as it could be seen. STATUS_OK or
 * STATUS_BAD_MESSAGE with `out_error` filled. */
MUST_USE enum status client_request_decode(const uint8_t *frame, size_t length,
                                           struct client_request *out_request,
                                           struct wire_error *out_error);
/* Client's side: lenient. */
MUST_USE enum status client_answer_decode(const uint8_t *frame, size_t length,
                                          struct client_answer *out_answer,
                                          struct wire_error *out_error);

/* Encode into `out`; with `out` NULL only measure. STATUS_OK, or STATUS_FULL when `capacity` is too
 * small. */
MUST_USE enum status client_request_encode(const struct client_request *request, uint8_t *out,
                                           size_t capacity, size_t *out_bytes);
MUST_USE enum status client_answer_encode(const struct client_answer *answer, uint8_t *out,
                                          size_t capacity, size_t *out_bytes);

/* The answer to a refused frame; borrows the texts of `error`. */
struct client_answer client_answer_refusal(const struct wire_error *error, bool named);

/* Hash over the whole of a submit but its id and version: equal bodies give equal hashes, however
 * they were spelled (names or numbers, ids as array or bin). For the idempotency of submit. */
struct id128 client_submit_body_hash(const struct client_submit *submit);

/* Walk over `messages`: *cursor starts as messages->encoded (decoded lists only). False at the end.
 */
bool chat_message_next(const struct wire_list *messages, const uint8_t **cursor,
                       struct chat_message *out_message);
/* Same for the `models` of an answer. */
bool client_model_next(const struct wire_list *models, const uint8_t **cursor,
                       struct client_model *out_model);

extern const struct wire_enum request_state_enum, finish_reason_enum, durability_enum;
CLIENT_REQUEST_LIST(WIRE_DECLARE_TABLE)
CLIENT_ANSWER_LIST(WIRE_DECLARE_TABLE)
extern const struct wire_table chat_message_table, client_model_table, client_usage_table,
    client_timings_table, client_finish_table;
extern const struct wire_family client_request_family, client_answer_family;

#endif
