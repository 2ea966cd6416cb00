/* Places where a test may kill, stop, end or hang the worker. The shipped worker links
 * fault_points_off.c; the test build tandem-worker-faults links fault_points_armed.c and reads
 * TANDEM_FAULT=name:count:action, action one of kill (SIGKILL), stop (SIGSTOP), exit (70 at once)
 * or hang; it happens at the count-th passage (1 = the first). */
#ifndef TANDEM_WORKER_FAULT_POINTS_H
#define TANDEM_WORKER_FAULT_POINTS_H

/* X(NAME, text): in the order in which a worker passes them. */
#define FAULT_POINT_LIST(X)                                                                        \
    X(BEFORE_HELLO, "before_hello")                                                                \
    X(AFTER_HELLO, "after_hello")                                                                  \
    X(AFTER_ATTACH, "after_attach")                                                                \
    X(AFTER_READY, "after_ready")                                                                  \
    X(PLAN_RECEIVED, "plan_received")                                                              \
    X(PLAN_CHECKED, "plan_checked")                                                                \
    X(LAYER, "layer")                                                                              \
    X(SAMPLED, "sampled")                                                                          \
    X(BEFORE_RESULT_SENT, "before_result_sent")                                                    \
    X(RESULT_SHOWN, "result_shown")                                                                \
    X(AFTER_RESULT_SENT, "after_result_sent")                                                      \
    X(BEFORE_DRAINED, "before_drained")

enum fault_point {
#define FAULT_POINT_ENUM(name, text) FAULT_##name,
    FAULT_POINT_LIST(FAULT_POINT_ENUM)
#undef FAULT_POINT_ENUM
        FAULT_POINT_COUNT
};

/* Any thread. Returns unless it is armed for this point and passage. */
void fault_point(enum fault_point point);

#endif
