#include "bench/profile.h"

#include "common/check.h"
#include "common/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ROWS_OF_PROFILE_MAX = 32 };

/* An operation, and of products their shape. */
struct profile_row {
    const char *name; /* NULL: free */
    uint32_t outputs, columns;
    uint64_t calls, time_ns;
};

static struct {
    const struct backend_operations *real;
    struct backend_operations timed;
    struct profile_row rows[ROWS_OF_PROFILE_MAX];
} profile;

static void count(const char *name, uint32_t outputs, uint32_t columns, uint64_t start_ns)
{
    uint64_t time_ns = clock_now_ns() - start_ns;
    struct profile_row *row = profile.rows;
    while (row->name != NULL &&
           (row->name != name || row->outputs != outputs || row->columns != columns))
        row++;
    CHECK(row < profile.rows + ROWS_OF_PROFILE_MAX - 1);
    row->name = name;
    row->outputs = outputs;
    row->columns = columns;
    row->calls++;
    row->time_ns += time_ns;
}

static void timed_matmul(struct backend *backend, const struct matmul_args *args)
{
    static const char name[] = "product";
    uint64_t start = clock_now_ns();
    uint32_t outputs = 0;
    profile.real->matmul(backend, args);
    for (uint32_t part = 0; part < args->part_count; part++)
        outputs += args->parts[part].matrix->rows;
    count(name, outputs, args->columns, start);
}

/* The other operations, all alike. */
#define TIMED_OPERATIONS(X)                                                                        \
    X(embed)                                                                                       \
    X(gather)                                                                                      \
    X(rmsnorm)                                                                                     \
    X(prepare) X(attention) X(add) X(norm_prepare) X(silu_prepare) X(rope_write) X(sample)

#define TIMED_FUNCTION(operation)                                                                  \
    static void timed_##operation(struct backend *backend, const struct operation##_args *args)    \
    {                                                                                              \
        static const char name[] = #operation;                                                     \
        uint64_t start = clock_now_ns();                                                           \
        profile.real->operation(backend, args);                                                    \
        count(name, 0, 0, start);                                                                  \
    }
TIMED_OPERATIONS(TIMED_FUNCTION)

#define TIMED_ENTRY(operation) profile.timed.operation = timed_##operation;

void profile_install(struct backend *backend)
{
    CHECK(profile.real == NULL && backend->steps == NULL);
    profile.real = backend->operations;
    profile.timed = *profile.real;
    profile.timed.matmul = timed_matmul;
    TIMED_OPERATIONS(TIMED_ENTRY)
    backend->operations = &profile.timed;
}

void profile_clear(void)
{
    memset(profile.rows, 0, sizeof profile.rows);
}

void profile_print(double seconds, uint32_t steps)
{
    double rest = seconds;
    for (const struct profile_row *row = profile.rows; row->name != NULL; row++) {
        double spent = (double)row->time_ns * 1e-9;
        char shape[32] = "";
        if (row->outputs != 0)
            snprintf(shape, sizeof shape, "%" PRIu32 " x %" PRIu32, row->outputs, row->columns);
        printf("    %-14s %-14s %8.3f ms %6.0f calls %5.1f %%\n", row->name, shape,
               spent * 1e3 / steps, (double)row->calls / steps, spent / seconds * 100);
        rest -= spent;
    }
    printf("    %-29s %8.3f ms %19.1f %%\n", "between", rest * 1e3 / steps, rest / seconds * 100);
}
