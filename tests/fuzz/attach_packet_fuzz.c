/* A packet of the attach socket, as a hello at the coordinator and as an answer at the worker. */
#include "proto/worker_messages.h"

#include "common/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    uint8_t packet[LIMIT_ATTACH_BYTES];
    size_t encoded;
    struct wire_error error;
    struct attach_hello hello, hello_again;
    struct attach_answer answer, answer_again;
    if (attach_hello_decode(bytes, length, &hello, &error) == STATUS_OK) {
        CHECK(hello.geometry.layers >= 1 && hello.geometry.layers <= LIMIT_LAYERS);
        CHECK(hello.arithmetic.length <= LIMIT_NAME_BYTES);
        CHECK(attach_hello_encode(&hello, packet, sizeof packet, &encoded) == STATUS_OK);
        CHECK(attach_hello_decode(packet, encoded, &hello_again, &error) == STATUS_OK);
        CHECK(hello_again.blocks == hello.blocks && hello_again.layout == hello.layout);
    } else {
        CHECK(error.message[0] != '\0');
    }
    if (attach_answer_decode(bytes, length, &answer, &error) == STATUS_OK) {
        CHECK(attach_answer_encode(&answer, packet, sizeof packet, &encoded) == STATUS_OK);
        CHECK(attach_answer_decode(packet, encoded, &answer_again, &error) == STATUS_OK);
        CHECK(answer_again.type == answer.type);
    }
    return 0;
}
