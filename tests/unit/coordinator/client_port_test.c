/* The client port against clients on plain sockets: requests, refusals, hang-ups, crowds. */
#include "coordinator/client_port.h"

#include "common/clock.h"
#include "common/run_directory.h"
#include "support/sp_client.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { CROWD = 100 };

/* One port for all tests: sockets of nng are not closed before the process ends. */
static struct {
    char directory[32], path[SOCKET_PATH_BYTES];
    struct event_loop loop;
    struct client_port *port;
} fixture = {.directory = "/tmp/tandem-client-XXXXXX"};

static int open_fixture(void **state)
{
    (void)state;
    struct reason why;
    assert_non_null(mkdtemp(fixture.directory));
    snprintf(fixture.path, sizeof fixture.path, "%s/client.ipc", fixture.directory);
    assert_int_equal(event_loop_open(&fixture.loop), STATUS_OK);
    assert_int_equal(
        client_port_open(&fixture.loop, fixture.path, &fixture.port, reason_init(&why)), STATUS_OK);
    return 0;
}

static int close_fixture(void **state)
{
    (void)state;
    client_port_stop_listening(fixture.port);
    struct stat metadata;
    assert_int_equal(stat(fixture.path, &metadata), -1);
    assert_int_equal(sp_connect(fixture.path), -1);
    return rmdir(fixture.directory);
}

/* Runs the loop until something happens; fails after five seconds. */
static struct client_event next_event(void)
{
    struct client_event event;
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    while (!client_port_next(fixture.port, &event)) {
        assert_true(clock_now_ns() < end_ns);
        assert_int_equal(event_loop_wait(&fixture.loop, end_ns), STATUS_OK);
    }
    return event;
}

static int connect_client(void)
{
    int client = sp_connect(fixture.path);
    assert_true(client >= 0);
    assert_true(sp_greet(client));
    return client;
}

static void ask(int client, uint32_t number, const struct client_request *request)
{
    uint8_t body[512];
    size_t bytes;
    assert_int_equal(client_request_encode(request, body, sizeof body, &bytes), STATUS_OK);
    assert_true(sp_ask(client, number, body, bytes));
}

static void answer_health(uint64_t handle)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_HEALTH};
    answer.health.live = true;
    client_port_answer(fixture.port, handle, &answer);
}

static struct client_answer read_answer(int client, uint32_t number, uint8_t *body, size_t capacity)
{
    struct client_answer answer;
    struct wire_error error;
    size_t bytes = sp_answer(client, number, body, capacity);
    assert_true(bytes > 0);
    assert_int_equal(client_answer_decode(body, bytes, &answer, &error), STATUS_OK);
    return answer;
}

static void a_request_is_answered_on_its_own_connection(void **state)
{
    (void)state;
    uint8_t body[1024];
    int clients[2] = {connect_client(), connect_client()};
    struct client_request request = {.type = CLIENT_HEALTH};
    uint64_t handles[2];
    for (uint32_t i = 0; i < 2; i++) {
        ask(clients[i], 7 + i, &request);
        struct client_event event = next_event();
        assert_int_equal(event.kind, CLIENT_EVENT_REQUEST);
        assert_int_equal(event.request.type, CLIENT_HEALTH);
        handles[i] = event.handle;
    }
    assert_true(handles[0] != handles[1] && handles[0] != 0 && handles[1] != 0);
    for (uint32_t i = 2; i-- > 0;) { /* in the other order */
        answer_health(handles[i]);
        assert_true(read_answer(clients[i], 7 + i, body, sizeof body).health.live);
        close(clients[i]);
    }
}

static void a_client_that_speaks_in_names_is_answered_in_names(void **state)
{
    (void)state;
    static const uint8_t named[] = "\x81\xa4type\xa6health";
    uint8_t body[1024];
    int client = connect_client();
    assert_true(sp_ask(client, 1, named, sizeof named - 1));
    struct client_event event = next_event();
    assert_int_equal(event.kind, CLIENT_EVENT_REQUEST);
    assert_true(event.request.named);
    answer_health(event.handle);
    size_t bytes = sp_answer(client, 1, body, sizeof body);
    assert_true(bytes > 5);
    assert_non_null(memmem(body, bytes, "live", 4));
    close(client);
}

static void a_bad_frame_is_answered_and_the_next_one_works(void **state)
{
    (void)state;
    uint8_t body[1024];
    int client = connect_client();
    assert_true(sp_ask(client, 1, "\xc1nonsense", 9));
    assert_int_equal(next_event().kind, CLIENT_EVENT_BAD_FRAME);
    struct client_answer refusal = read_answer(client, 1, body, sizeof body);
    assert_int_equal(refusal.type, CLIENT_ANSWER_ERROR);
    assert_int_equal(refusal.error.code, ERROR_CODE_INVALID_REQUEST);
    struct client_request request = {.type = CLIENT_HEALTH};
    ask(client, 2, &request);
    answer_health(next_event().handle);
    assert_int_equal(read_answer(client, 2, body, sizeof body).type, CLIENT_ANSWER_HEALTH);
    close(client);
}

static void who_hangs_up_is_told_once(void **state)
{
    (void)state;
    uint8_t body[1024];
    int client = connect_client(), other = connect_client();
    struct client_request request = {.type = CLIENT_HEALTH};
    ask(client, 1, &request);
    struct client_event asked = next_event();
    assert_int_equal(asked.kind, CLIENT_EVENT_REQUEST);
    ask(other, 2, &request);
    struct client_event waits = next_event();
    assert_int_equal(waits.kind, CLIENT_EVENT_REQUEST);
    close(client);
    struct client_event gone = next_event();
    assert_int_equal(gone.kind, CLIENT_EVENT_GONE);
    assert_int_equal(gone.handle, asked.handle);
    struct client_event none;
    assert_false(client_port_next(fixture.port, &none)); /* the other one is still there */
    answer_health(waits.handle);
    assert_true(read_answer(other, 2, body, sizeof body).health.live);
    close(other);
}

static void waiting_calls_leave_room_for_the_next(void **state)
{
    (void)state;
    static int clients[CROWD];
    static uint64_t handles[CROWD];
    uint8_t body[1024];
    struct client_request request = {.type = CLIENT_HEALTH};
    for (uint32_t i = 0; i < CROWD; i++) {
        clients[i] = connect_client();
        ask(clients[i], i, &request);
        struct client_event event = next_event();
        assert_int_equal(event.kind, CLIENT_EVENT_REQUEST);
        handles[i] = event.handle;
    }
    for (uint32_t i = 0; i < CROWD; i++)
        answer_health(handles[i]);
    for (uint32_t i = 0; i < CROWD; i++) {
        assert_true(read_answer(clients[i], i, body, sizeof body).health.live);
        close(clients[i]);
    }
}

static void an_answer_larger_than_the_stack_buffer_arrives_whole(void **state)
{
    (void)state;
    static uint8_t body[SP_BODY_BYTES_MAX];
    static uint32_t ids[100000];
    int client = connect_client();
    struct client_request request = {.type = CLIENT_TOKENIZE};
    request.tokenize.has_prompt = true;
    request.tokenize.prompt = wire_text_of("text");
    ask(client, 1, &request);
    struct client_event event = next_event();
    for (uint32_t i = 0; i < 100000; i++)
        ids[i] = i;
    struct client_answer answer = {.type = CLIENT_ANSWER_TOKENS};
    answer.tokens.ids = wire_tokens_of(ids, 100000);
    client_port_answer(fixture.port, event.handle, &answer);
    struct client_answer got = read_answer(client, 1, body, sizeof body);
    assert_int_equal(got.type, CLIENT_ANSWER_TOKENS);
    assert_int_equal(got.tokens.ids.count, 100000);
    close(client);
}

static void a_frame_above_the_limit_is_cut_off(void **state)
{
    (void)state;
    uint8_t head[SP_HEAD_BYTES] = {1}, byte;
    const uint64_t lengths[] = {LIMIT_CLIENT_FRAME_BYTES + 4096, UINT64_C(1) << 40,
                                UINT64_MAX - 31};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int client = connect_client();
        uint64_t length = htobe64(lengths[i]);
        memcpy(head + 1, &length, sizeof length);
        assert_true(sp_write(client, head, sizeof head));
        ssize_t got = recv(client, &byte, 1, 0);
        assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
        close(client);
    }
}

static void the_socket_is_for_owner_and_group(void **state)
{
    (void)state;
    struct stat metadata;
    assert_int_equal(stat(fixture.path, &metadata), 0);
    assert_int_equal(metadata.st_mode & 0777, 0660);
}

static void the_self_test_asks_and_is_content(void **state)
{
    (void)state;
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    assert_int_equal(client_port_tick(fixture.port, clock_now_ns()), STATUS_OK);
    struct client_event event = next_event();
    assert_int_equal(event.kind, CLIENT_EVENT_REQUEST);
    assert_int_equal(event.request.type, CLIENT_HEALTH);
    uint64_t patience_ns = client_port_next_deadline_ns(fixture.port);
    answer_health(event.handle);
    while (client_port_next_deadline_ns(fixture.port) == patience_ns) {
        assert_true(clock_now_ns() < end_ns); /* the answer moves it to the next probe */
        assert_int_equal(event_loop_wait(&fixture.loop, end_ns), STATUS_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_answered_on_its_own_connection),
        cmocka_unit_test(a_client_that_speaks_in_names_is_answered_in_names),
        cmocka_unit_test(a_bad_frame_is_answered_and_the_next_one_works),
        cmocka_unit_test(who_hangs_up_is_told_once),
        cmocka_unit_test(waiting_calls_leave_room_for_the_next),
        cmocka_unit_test(an_answer_larger_than_the_stack_buffer_arrives_whole),
        cmocka_unit_test(a_frame_above_the_limit_is_cut_off),
        cmocka_unit_test(the_socket_is_for_owner_and_group),
        cmocka_unit_test(the_self_test_asks_and_is_content),
    };
    int failed = cmocka_run_group_tests(tests, open_fixture, close_fixture);
    fflush(stdout);
    _exit(failed); /* threads of nng are still there */
}
