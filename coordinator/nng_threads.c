#include "coordinator/nng_threads.h"

#include "common/check.h"
#include "common/duration.h"

#include <dirent.h>
#include <nng/nng.h>
#include <nng/supplemental/util/platform.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS_MAX = 20, NAME_BYTES = 32, PATH_BYTES = 64, THREAD_DIGITS = 20 };

/* A callback that never returns holds the thread that it runs on. */
static void hold_thread(void *context)
{
    (void)context;
    for (;;)
        pause();
}

static bool runs_callbacks(const char *thread)
{
    static const char callback_thread[] = "nng:task\n";
    char path[PATH_BYTES], name[NAME_BYTES] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.*s/comm", THREAD_DIGITS, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool found = fgets(name, sizeof name, file) != NULL && strcmp(name, callback_thread) == 0;
    fclose(file);
    return found;
}

static uint32_t count_threads(void)
{
    uint32_t count = 0;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;)
        count += runs_callbacks(entry->d_name);
    closedir(threads);
    return count;
}

/* A thread gets its name when it first runs: until two looks agree. Too few are harmless. */
static uint32_t count_settled(void)
{
    const struct timespec moment = {.tv_nsec = NS_PER_MS};
    uint32_t count = count_threads(), before = 0;
    for (uint32_t look = 0; look < LOOKS_MAX && (count == 0 || count != before); look++) {
        nanosleep(&moment, NULL);
        before = count;
        count = count_threads();
    }
    return count;
}

uint32_t nng_threads_limit(uint32_t keep)
{
    CHECK(keep > 0);
    uint32_t taken = 0;
    for (uint32_t count = count_settled(); count > keep; count--) {
        nng_aio *holder; /* never freed: its callback does not return */
        if (nng_aio_alloc(&holder, hold_thread, NULL) != 0)
            break;
        nng_sleep_aio(0, holder);
        taken++;
    }
    return taken;
}
