/* What coordinator and worker say to each other.
 *   attach socket (AF_UNIX SOCK_SEQPACKET, one msgpack map per packet): hello -> attach | standby |
 * refused worker link (nng pair0 of one epoch):  plan, drain  ->   <-  ready, result, refused,
 * drained, fatal Every message of the link carries (instance, epoch): the receiver drops and counts
 * what is not of its own. Decoding is lenient: unknown keys are skipped, unknown enum numbers
 * become UNKNOWN (0). */
#ifndef TANDEM_PROTO_WORKER_MESSAGES_H
#define TANDEM_PROTO_WORKER_MESSAGES_H

#include "proto/envelope.h"
#include "proto/limits.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "proto/wire.h"

/* clang-format off */

/* ---- Attach: X(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text) ---- */

#define ATTACH_REFUSAL_LIST(X) \
    X(ATTACH_REFUSAL_VERSION, 1, "version", "no common protocol version, or another layout of the shared memory") \
    X(ATTACH_REFUSAL_MODEL, 2, "model", "another model file") \
    X(ATTACH_REFUSAL_ARITHMETIC, 3, "arithmetic", "other bits: it could not continue a stream") \
    X(ATTACH_REFUSAL_GEOMETRY, 4, "geometry", "another shape of the KV cache") \
    X(ATTACH_REFUSAL_CAPACITY, 5, "capacity", "fewer blocks, slots or context than configured") \
    X(ATTACH_REFUSAL_UID, 6, "uid", "the peer's user may not attach") \
    X(ATTACH_REFUSAL_SEGMENT, 7, "segment", "its shared memory is missing, unsealed, short or inconsistent") \
    X(ATTACH_REFUSAL_MALFORMED, 8, "malformed", "the packet is not a hello") \
    X(ATTACH_REFUSAL_STANDBYS, 9, "standbys", "enough standby workers wait already; try again later") \
    X(ATTACH_REFUSAL_ABANDONED, 10, "abandoned", "too many epochs wait for the end of their processes; try again later") \
    X(ATTACH_REFUSAL_DRAINING, 11, "draining", "the coordinator is stopping; try again later")

enum attach_refusal { ATTACH_REFUSAL_UNKNOWN = 0, ATTACH_REFUSAL_LIST(WIRE_ENUM_MEMBER) };

#define ATTACH_GEOMETRY_FIELDS(X, T) \
    X(T, 1, layers, U32, none, REQUIRED, 1, LIMIT_LAYERS, "layers") \
    X(T, 2, kv_heads, U32, none, REQUIRED, 1, LIMIT_KV_HEADS, "key and value heads") \
    X(T, 3, head_dim, U32, none, REQUIRED, 1, LIMIT_HEAD_DIM_MAX, "elements of a head") \
    X(T, 4, block_tokens, U32, none, REQUIRED, 1, LIMIT_BLOCK_TOKENS_MAX, "positions of a block") \
    X(T, 5, type, U32, none, REQUIRED, 1, UINT32_MAX, "enum kv_type") \
    X(T, 6, order, U32, none, REQUIRED, 1, UINT32_MAX, "enum kv_order")

#define ATTACH_HELLO_FIELDS(X, T) \
    X(T, 2, version_min, U32, none, REQUIRED, 1, UINT32_MAX, "oldest protocol version it speaks") \
    X(T, 3, version_max, U32, none, REQUIRED, 1, UINT32_MAX, "newest") \
    X(T, 4, layout, U64, none, REQUIRED, 0, UINT64_MAX, "fingerprint of all shared layouts") \
    X(T, 5, build, TEXT, none, REQUIRED, 0, LIMIT_NAME_BYTES, "version of the program, for logs") \
    X(T, 6, backend, TEXT, none, REQUIRED, 1, LIMIT_NAME_BYTES, "for logs") \
    X(T, 7, arithmetic, TEXT, none, REQUIRED, 1, LIMIT_NAME_BYTES, "names the bits, such as cpu-2-f16") \
    X(T, 8, metadata_hash, ID128, none, REQUIRED, 0, 0, "of hyperparameters, vocabulary and tensor directory") \
    X(T, 9, tensor_hash, ID128, none, REQUIRED, 0, 0, "of the tensor bytes") \
    X(T, 10, geometry, GROUP, attach_geometry, REQUIRED, 0, 0, "of the KV cache") \
    X(T, 11, blocks, U64, none, REQUIRED, 1, LIMIT_POOL_BLOCKS, "physical blocks of its pool") \
    X(T, 12, slots, U32, none, REQUIRED, 1, UINT32_MAX, "it can serve") \
    X(T, 13, context, U32, none, REQUIRED, 1, UINT32_MAX, "positions of a slot it can serve") \
    X(T, 14, vocabulary, U32, none, REQUIRED, 1, LIMIT_VOCABULARY, "tokens of the tokenizer") \
    X(T, 15, step_tokens, U32, none, REQUIRED, 1, UINT32_MAX, "input tokens of one plan it can serve") \
    X(T, 16, pid, U64, none, REQUIRED, 0, UINT64_MAX, "as it sees itself, for logs") \
    X(T, 17, start_time, U64, none, REQUIRED, 0, UINT64_MAX, "of its process")

#define ATTACH_ATTACH_FIELDS(X, T) \
    X(T, 2, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator") \
    X(T, 3, epoch, U64, none, REQUIRED, 1, UINT64_MAX, "of this attachment") \
    X(T, 4, version, U32, none, REQUIRED, 1, UINT32_MAX, "protocol version to speak") \
    X(T, 5, url, TEXT, none, REQUIRED, 1, LIMIT_URL_BYTES, "nng address of this epoch")

#define ATTACH_STANDBY_FIELDS(X, T) \
    X(T, 2, instance, ID128, none, REQUIRED, 0, 0, "of the coordinator") \
    X(T, 3, position, U32, none, REQUIRED, 1, LIMIT_STANDBY_WORKERS, "1: the next to be promoted")

#define ATTACH_REFUSED_FIELDS(X, T) \
    X(T, 2, reason, ENUM, attach_refusal, REQUIRED, 0, 0, "what does not fit") \
    X(T, 3, message, TEXT, none, REQUIRED, 0, LIMIT_ERROR_MESSAGE_BYTES, "both values, and what to do")

#define ATTACH_REQUEST_LIST(X) \
    X(1, attach_hello, hello, "hello", ATTACH_HELLO_FIELDS, "Worker; with its sealed segment as descriptor.")

#define ATTACH_ANSWER_LIST(X) \
    X(2, attach_attach, attach, "attach", ATTACH_ATTACH_FIELDS, "Coordinator; with its sealed segment of this epoch.") \
    X(3, attach_standby, standby, "standby", ATTACH_STANDBY_FIELDS, "Coordinator; the connection stays, `attach` may follow.") \
    X(4, attach_refused, refused, "refused", ATTACH_REFUSED_FIELDS, "Coordinator; then it closes.")

/* ---- Worker link ---- */

#define WORKER_FATAL_LIST(X) \
    X(WORKER_FATAL_DEVICE, 1, "device", "the compute device failed") \
    X(WORKER_FATAL_MEMORY, 2, "memory", "out of memory") \
    X(WORKER_FATAL_INTERNAL, 3, "internal", "a fault of the worker")

enum worker_fatal_reason { WORKER_FATAL_UNKNOWN = 0, WORKER_FATAL_LIST(WIRE_ENUM_MEMBER) };

#define WORKER_DRAIN_FIELDS(X, T) ENVELOPE_FIELDS(X, T)

#define WORKER_READY_FIELDS(X, T) ENVELOPE_FIELDS(X, T)

#define WORKER_REFUSED_FIELDS(X, T) \
    ENVELOPE_FIELDS(X, T) \
    X(T, 4, step, U64, none, REQUIRED, 0, UINT64_MAX, "of the refused plan; 0 if it could not be read") \
    X(T, 5, row, U32, none, OPTIONAL, 0, LIMIT_SLOTS - 1, "index of the row to blame; absent: none") \
    X(T, 6, reason, ENUM, plan_refusal, REQUIRED, 0, 0, "what is wrong") \
    X(T, 7, message, TEXT, none, REQUIRED, 0, LIMIT_ERROR_MESSAGE_BYTES, "value and bound")

#define WORKER_DRAINED_FIELDS(X, T) \
    ENVELOPE_FIELDS(X, T) \
    X(T, 4, step, U64, none, REQUIRED, 0, UINT64_MAX, "last step answered; no result follows")

#define WORKER_FATAL_FIELDS(X, T) \
    ENVELOPE_FIELDS(X, T) \
    X(T, 4, reason, ENUM, worker_fatal_reason, REQUIRED, 0, 0, "what failed") \
    X(T, 5, message, TEXT, none, REQUIRED, 0, LIMIT_ERROR_MESSAGE_BYTES, "one sentence")

/* The messages of plan and result stand in their headers. */
#define WORKER_DRAIN_MESSAGE(X) \
    X(2, worker_drain, drain, "drain", WORKER_DRAIN_FIELDS, "Coordinator: finish the plans at hand, answer drained, leave.")
#define WORKER_READY_MESSAGE(X) \
    X(16, worker_ready, ready, "ready", WORKER_READY_FIELDS, "Worker: plans may come.")
#define WORKER_END_MESSAGES(X) \
    X(18, worker_refused, refused, "refused", WORKER_REFUSED_FIELDS, "Worker: the plan is wrong; the epoch is over.") \
    X(19, worker_drained, drained, "drained", WORKER_DRAINED_FIELDS, "Worker: nothing follows.") \
    X(20, worker_fatal, fatal, "fatal", WORKER_FATAL_FIELDS, "Worker: it is about to exit.")

#define WORKER_ORDER_LIST(X) WORKER_PLAN_MESSAGE(X) WORKER_DRAIN_MESSAGE(X)
#define WORKER_REPORT_LIST(X) WORKER_READY_MESSAGE(X) WORKER_RESULT_MESSAGE(X) WORKER_END_MESSAGES(X)

/* ---- Structs ---- */

struct attach_geometry { ATTACH_GEOMETRY_FIELDS(WIRE_MEMBER, attach_geometry) };
struct attach_hello { ATTACH_HELLO_FIELDS(WIRE_MEMBER, attach_hello) };
struct attach_attach { ATTACH_ATTACH_FIELDS(WIRE_MEMBER, attach_attach) };
struct attach_standby { ATTACH_STANDBY_FIELDS(WIRE_MEMBER, attach_standby) };
struct attach_refused { ATTACH_REFUSED_FIELDS(WIRE_MEMBER, attach_refused) };

struct worker_drain { WORKER_DRAIN_FIELDS(WIRE_MEMBER, worker_drain) };
struct worker_ready { WORKER_READY_FIELDS(WIRE_MEMBER, worker_ready) };
struct worker_refused { WORKER_REFUSED_FIELDS(WIRE_MEMBER, worker_refused) };
struct worker_drained { WORKER_DRAINED_FIELDS(WIRE_MEMBER, worker_drained) };
struct worker_fatal { WORKER_FATAL_FIELDS(WIRE_MEMBER, worker_fatal) };

/* clang-format on */

enum attach_answer_type {
    ATTACH_ANSWER_NONE = 0,
    ATTACH_ANSWER_ATTACH = 2,
    ATTACH_ANSWER_STANDBY = 3,
    ATTACH_ANSWER_REFUSED = 4,
};

/* Decoded texts borrow from the packet. */
struct attach_answer {
    enum attach_answer_type type;
    union {
        struct attach_attach attach;
        struct attach_standby standby;
        struct attach_refused refused;
    };
};

enum worker_order_type { WORKER_ORDER_NONE = 0, WORKER_PLAN = 1, WORKER_DRAIN = 2 };

/* Coordinator to worker. Nothing borrows: the plan is copied out of the frame. About 20 KiB. */
struct worker_order {
    enum worker_order_type type;
    union {
        struct plan plan;
        struct worker_drain drain;
    };
};

enum worker_report_type {
    WORKER_REPORT_NONE = 0,
    WORKER_READY = 16,
    WORKER_RESULT = 17,
    WORKER_REFUSED = 18,
    WORKER_DRAINED = 19,
    WORKER_FATAL = 20,
};

/* Worker to coordinator. The result is copied out; texts of refused and fatal borrow from the
 * frame. About 32 KiB. */
struct worker_report {
    enum worker_report_type type;
    union {
        struct worker_ready ready;
        struct result result;
        struct worker_refused refused;
        struct worker_drained drained;
        struct worker_fatal fatal;
    };
};

/* All decoders: STATUS_OK or STATUS_BAD_MESSAGE with `out_error` filled; the output is then
 * undefined. Structure, types and column lengths are checked here; rows are judged by plan_judge
 * and result_judge. */
MUST_USE enum status attach_hello_decode(const uint8_t *packet, size_t length,
                                         struct attach_hello *out_hello,
                                         struct wire_error *out_error);
MUST_USE enum status attach_answer_decode(const uint8_t *packet, size_t length,
                                          struct attach_answer *out_answer,
                                          struct wire_error *out_error);
MUST_USE enum status worker_order_decode(const uint8_t *frame, size_t length,
                                         struct worker_order *out_order,
                                         struct wire_error *out_error);
MUST_USE enum status worker_report_decode(const uint8_t *frame, size_t length,
                                          struct worker_report *out_report,
                                          struct wire_error *out_error);

/* All encoders: STATUS_OK, or STATUS_FULL when `capacity` is too small; with `out` NULL they only
 * measure. LIMIT_ATTACH_BYTES always suffices for attach messages, LIMIT_WORKER_FRAME_BYTES for the
 * link. */
MUST_USE enum status attach_hello_encode(const struct attach_hello *hello, uint8_t *out,
                                         size_t capacity, size_t *out_bytes);
MUST_USE enum status attach_answer_encode(const struct attach_answer *answer, uint8_t *out,
                                          size_t capacity, size_t *out_bytes);
MUST_USE enum status worker_order_encode(const struct worker_order *order, uint8_t *out,
                                         size_t capacity, size_t *out_bytes);
MUST_USE enum status worker_report_encode(const struct worker_report *report, uint8_t *out,
                                          size_t capacity, size_t *out_bytes);

extern const struct wire_enum attach_refusal_enum, worker_fatal_reason_enum;
ATTACH_REQUEST_LIST(WIRE_DECLARE_TABLE)
ATTACH_ANSWER_LIST(WIRE_DECLARE_TABLE)
WORKER_ORDER_LIST(WIRE_DECLARE_TABLE)
WORKER_REPORT_LIST(WIRE_DECLARE_TABLE)
extern const struct wire_table attach_geometry_table;
extern const struct wire_family attach_request_family, attach_answer_family, worker_order_family,
    worker_report_family;

#endif
