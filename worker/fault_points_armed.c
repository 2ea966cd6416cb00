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

enum { ACTION_NONE, ACTION_KILL, ACTION_STOP, ACTION_EXIT, ACTION_HANG, ACTION_COUNT };

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

/* Place of `name` in a list, or -1. */
static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (name != NULL && strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static void read_environment(void)
{
    const char *text = getenv("TANDEM_FAULT");
    char copy[128], *rest = NULL;
    armed.action = ACTION_NONE;
    if (text == NULL)
        return;
    snprintf(copy, sizeof copy, "%s", text);
    const char *name = strtok_r(copy, ":", &rest);
    const char *count = strtok_r(NULL, ":", &rest);
    const char *action = strtok_r(NULL, ":", &rest);
    long passages = count != NULL ? strtol(count, NULL, 10) : 0;
    armed.point = find_name(POINT_NAMES, FAULT_POINT_COUNT, name);
    armed.action = find_name(ACTION_NAMES, ACTION_COUNT, action);
    if (armed.point < 0 || armed.action <= ACTION_NONE || passages < 1)
        give_up(text);
    atomic_store(&armed.passages_left, passages);
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
