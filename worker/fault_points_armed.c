#include "worker/fault_points.h"

#include "common/exit_codes.h"
#include "common/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ACTION_NONE, ACTION_KILL, ACTION_STOP, ACTION_EXIT, ACTION_HANG };

static const char *const POINT_NAMES[FAULT_POINT_COUNT] = {
#define FAULT_POINT_NAME(name, text) [FAULT_##name] = (text),
    FAULT_POINT_LIST(FAULT_POINT_NAME)
#undef FAULT_POINT_NAME
};

static const char *const ACTION_NAMES[] = {"none", "kill", "stop", "exit", "hang"};

/* Read once from TANDEM_FAULT. The test build of the worker is the one place with such state. */
static struct {
    pthread_once_t once;
    int point, action;
    atomic_long passages_left;
} armed = {.once = PTHREAD_ONCE_INIT};

static void give_up(const char *text)
{
    fprintf(stderr, "TANDEM_FAULT=%s is not name:count:action\n", text);
    _exit(EXIT_CODE_USAGE);
}

static void read_environment(void)
{
    const char *text = getenv("TANDEM_FAULT");
    armed.action = ACTION_NONE;
    if (text == NULL)
        return;
    char name[64], action[16];
    long count;
    if (sscanf(text, "%63[^:]:%ld:%15s", name, &count, action) != 3 || count < 1)
        give_up(text);
    armed.point = -1;
    for (int i = 0; i < FAULT_POINT_COUNT; i++)
        if (strcmp(POINT_NAMES[i], name) == 0)
            armed.point = i;
    for (int i = ACTION_KILL; i <= ACTION_HANG; i++)
        if (strcmp(ACTION_NAMES[i], action) == 0)
            armed.action = i;
    if (armed.point < 0 || armed.action == ACTION_NONE)
        give_up(text);
    atomic_store(&armed.passages_left, count);
}

void fault_point(enum fault_point point)
{
    pthread_once(&armed.once, read_environment);
    if (armed.action == ACTION_NONE || armed.point != (int)point ||
        atomic_fetch_sub(&armed.passages_left, 1) != 1)
        return;
    log_warn("fault_point", "name=%s action=%s", POINT_NAMES[point], ACTION_NAMES[armed.action]);
    switch (armed.action) {
    case ACTION_KILL:
        raise(SIGKILL);
        break;
    case ACTION_STOP:
        raise(SIGSTOP);
        break;
    case ACTION_EXIT:
        _exit(EXIT_CODE_INTERNAL);
    default:
        for (;;)
            pause();
    }
}
