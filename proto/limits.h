/* Every bound of the protocol in one place. A setting may lower a bound, never raise it.
 * Sizes are bytes, tokens or counts as the name says. */
#ifndef TANDEM_PROTO_LIMITS_H
#define TANDEM_PROTO_LIMITS_H

/* Version of the client protocol and of the worker link; a peer outside the range is refused. */
enum {
    PROTOCOL_VERSION_MIN = 1,
    PROTOCOL_VERSION_MAX = 1,
};

/* Frames. The receive bound of each socket; nng drops the pipe of a larger frame. */
enum {
    LIMIT_CLIENT_FRAME_BYTES = 2 << 20,            /* request of a client */
    LIMIT_CLIENT_ANSWER_BYTES = (8 << 20) + 65536, /* answer: ids of 2 MiB of text, 4 bytes each */
    LIMIT_WORKER_FRAME_BYTES = 256 << 10,          /* plan, result and the rest of the link */
    LIMIT_ATTACH_BYTES = 4096,                     /* one packet of the attach socket */
};

/* msgpack structure, checked before a message is decoded. */
enum {
    LIMIT_WIRE_DEPTH = 8,
    LIMIT_WIRE_NODES = (2 << 20) + 4096, /* values in one frame; ids may come as an array */
};

/* Client messages. */
enum {
    LIMIT_REQUEST_ID_BYTES = 64,
    LIMIT_STOP_STRINGS = 16, /* also the items of any list of texts */
    LIMIT_STOP_BYTES = 64,   /* of one stop string */
    LIMIT_STOP_TOKENS = 64,
    LIMIT_CHAT_MESSAGES = 4096,
    LIMIT_CHAT_ROLE_BYTES = 32,
    LIMIT_ERROR_FIELD_BYTES = 64,
    LIMIT_ERROR_MESSAGE_BYTES = 512, /* a whole struct reason */
    LIMIT_NAME_BYTES = 128,
    LIMIT_MODELS = 16,
    LIMIT_WAIT_MS = 20000,                /* longest long poll */
    LIMIT_DEADLINE_MS = 7 * 86400 * 1000, /* one week */
    LIMIT_TEMPERATURE = 100,
};

/* Engine. Upper bounds of the settings and of what a segment may announce. */
enum {
    LIMIT_SLOTS = 1024, /* also the rows of a plan: each slot at most once */
    LIMIT_CONTEXT_TOKENS = 1 << 17,
    CONTEXT_TOKENS_DEFAULT = 8192, /* at most, where no option says more */
    LIMIT_VOCABULARY = 1 << 20,
    LIMIT_LAYERS = 256,
    LIMIT_KV_HEADS = 256,
    LIMIT_HEAD_DIM_MAX = 1024,
    LIMIT_BLOCK_TOKENS_MAX = 256,
    LIMIT_POOL_BLOCKS = 1 << 30, /* a block index is an int32_t; -1 is unmapped */
    LIMIT_STEP_TOKENS = 1 << 16,
    LIMIT_PLANS_IN_FLIGHT = 2,
    LIMIT_STANDBY_WORKERS = 4,
    LIMIT_ABANDONED_EPOCHS = 64,
    LIMIT_SEGMENT_MEBIBYTES = 8192, /* of one shared segment */
};

/* Attach. A socket path must fit sun_path (108 with the terminator); an nng URL adds "ipc://". */
enum {
    LIMIT_SOCKET_PATH_BYTES = 107,
    LIMIT_URL_BYTES = 120,
};

#endif
