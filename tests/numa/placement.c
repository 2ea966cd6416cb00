/* Where weights, stacks and the KV pool of the CPU backend lie on a machine with several memory
 * nodes, and that the bits of a tiny model do not depend on it. tests/numa/run.sh runs it in an
 * emulated machine.
 *
 * usage: numa_placement THREADS free|pin|refused ISA
 *
 * refused: the system refuses memory policies, as sandboxes do; then only bits and threads count.
 * Prints one line and what is wrong; exit 1 if anything is. Where there is one memory node: the
 * bits alone, exit 77. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/matrix.h"
#include "support/engine.h"
#include "support/isa_names.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    PAGE_BYTES = 4096,
    NODES_MAX = 64,
    THREADS_MAX = 256,
    STACK_BYTES = 64 << 10, /* deeper than what a thread touches when it starts */
    PROMPT_TOKENS = 262,    /* two segments of keys */
    CHUNK_TOKENS = 100,
    ANSWERS = 4,
    EXIT_LOST = 3, /* a read of something else than weights */
    EXIT_ONE_NODE = 77,
};

struct machine {
    uint32_t nodes;               /* that have processors or memory */
    int32_t node_of[CPU_SETSIZE]; /* [processor] -1: not there */
    bool has_memory[NODES_MAX];   /* [node] that this process may use */
};

struct team {
    uint32_t threads;
    pid_t ids[THREADS_MAX];      /* [thread] the caller's first */
    int32_t nodes[THREADS_MAX];  /* [thread] of the processor on which it runs */
    bool kept[THREADS_MAX];      /* [thread] it may run on no other node */
    cpu_set_t sets[THREADS_MAX]; /* [thread] where it may run */
};

/* Pages and how many of them lie where they should. */
struct tally {
    uint32_t pages, right;
};

static uint32_t failures;

static void expect(bool good, const char *what)
{
    if (good)
        return;
    printf("  wrong: %s\n", what);
    failures++;
}

/* ---- The machine ---- */

static bool read_text(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t length = fread(text, 1, bytes - 1, file);
    fclose(file);
    text[length] = '\0';
    return true;
}

static void note_processors(struct machine *machine, int32_t node, const char *list)
{
    char *end;
    for (const char *at = list; *at >= '0' && *at <= '9'; at = *end == ',' ? end + 1 : end) {
        unsigned long first = strtoul(at, &end, 10);
        unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++)
            machine->node_of[i] = node;
    }
}

static void read_machine(struct machine *machine)
{
    char path[128], text[4096];
    unsigned long allowed[16] = {0}; /* of the control group; a sandbox may not tell */
    if (syscall(SYS_get_mempolicy, NULL, allowed, sizeof allowed * CHAR_BIT, NULL,
                MPOL_F_MEMS_ALLOWED) != 0)
        allowed[0] = ULONG_MAX;
    for (uint32_t i = 0; i < CPU_SETSIZE; i++)
        machine->node_of[i] = -1;
    for (int32_t node = 0; node < NODES_MAX; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (!read_text(path, text, sizeof text))
            continue;
        machine->nodes++;
        note_processors(machine, node, text);
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
        const char *total = read_text(path, text, sizeof text) ? strstr(text, "MemTotal:") : NULL;
        machine->has_memory[node] =
            total != NULL && strtoul(total + 9, NULL, 10) > 0 && (allowed[0] >> node & 1) != 0;
    }
}

/* Node of a page that was touched; negative: none was. */
static int32_t node_of_page(const void *address)
{
    void *page = (void *)((uintptr_t)address / PAGE_BYTES * PAGE_BYTES);
    int status = -1;
    long result = syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0);
    CHECK(result == 0);
    return status;
}

/* Where a thread on `node` finds its memory: there, unless the node has none or this process may
 * not use it. */
static bool lies_well(const struct machine *machine, int32_t page_node, int32_t node)
{
    return page_node == node || (page_node >= 0 && !machine->has_memory[node]);
}

/* ---- Threads ---- */

static int compare_ids(const void *a, const void *b)
{
    return *(const pid_t *)a < *(const pid_t *)b ? -1 : 1;
}

static int32_t node_of_set(const struct machine *machine, const cpu_set_t *set)
{
    int32_t node = -1;
    for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, set) || machine->node_of[i] < 0)
            continue;
        if (node >= 0 && node != machine->node_of[i])
            return -1;
        node = machine->node_of[i];
    }
    return node;
}

/* Field 39 of the thread's line; its name, which may hold anything, ends with a bracket. */
static int32_t node_where_it_runs(const struct machine *machine, pid_t id)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)id);
    CHECK(read_text(path, line, sizeof line));
    const char *at = strrchr(line, ')');
    for (uint32_t field = 2; field < 39 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    CHECK(at != NULL);
    return machine->node_of[strtoul(at, NULL, 10)];
}

/* Threads are numbered as they were started. */
static void read_team(const struct machine *machine, struct team *team)
{
    *team = (struct team){0};
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.' && team->threads < THREADS_MAX)
            team->ids[team->threads++] = (pid_t)strtol(entry->d_name, NULL, 10);
    closedir(folder);
    qsort(team->ids, team->threads, sizeof team->ids[0], compare_ids);
    for (uint32_t i = 0; i < team->threads; i++) {
        CHECK(sched_getaffinity(team->ids[i], sizeof team->sets[i], &team->sets[i]) == 0);
        team->nodes[i] = node_of_set(machine, &team->sets[i]);
        team->kept[i] = team->nodes[i] >= 0;
        if (!team->kept[i])
            team->nodes[i] = node_where_it_runs(machine, team->ids[i]);
    }
}

/* All but the caller's stay on one processor each, which is another one for each as long as there
 * are enough: the emulated cores have one processor. */
static bool is_pinned(const struct team *team, const cpu_set_t *allowed)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (uint32_t i = 1; i < team->threads; i++) {
        if (CPU_COUNT(&team->sets[i]) != 1)
            return false;
        CPU_OR(&all, &all, &team->sets[i]);
    }
    uint32_t processors = (uint32_t)CPU_COUNT(allowed), others = (uint32_t)CPU_COUNT(&all);
    return team->threads > processors || others == team->threads - 1;
}

/* ---- Stacks ---- */

struct stack_job {
    const struct machine *machine;
    uint32_t threads;
    _Atomic uint32_t arrived, pages, right;
};

/* A share for each thread, none of which ends before all have begun. Looks at the thread's stack,
 * below all that it has touched before, and lets note_read() interrupt the thread. */
__attribute__((noinline)) static void look_at_stack(const void *context, uint32_t begin,
                                                    uint32_t end)
{
    struct stack_job *job = (struct stack_job *)context;
    uint8_t deep[STACK_BYTES];
    unsigned processor = 0, node = 0;
    sigset_t reads_signal;
    sigemptyset(&reads_signal);
    sigaddset(&reads_signal, SIGSEGV);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &reads_signal, NULL) == 0);
    for (uint32_t i = begin; i < end; i++) {
        CHECK(syscall(SYS_getcpu, &processor, &node, NULL) == 0);
        for (uint32_t at = 0; at < STACK_BYTES; at += PAGE_BYTES)
            ((volatile uint8_t *)deep)[at] = (uint8_t)i;
        int32_t page_node = node_of_page(deep + STACK_BYTES / 2);
        atomic_fetch_add(&job->pages, 1);
        atomic_fetch_add(&job->right, lies_well(job->machine, page_node, (int32_t)node) ? 1 : 0);
    }
    atomic_fetch_add(&job->arrived, 1);
    while (atomic_load(&job->arrived) < job->threads)
        sched_yield();
}

/* ---- Weights ---- */

/* Matrices that are multiplied in one operation. */
struct joint {
    const struct matrix *parts[MATMUL_PARTS_MAX];
    uint32_t count;
};

static uint32_t list_joints(const struct engine *engine, struct joint *joints)
{
    const struct weights *weights = &engine->model.weights;
    uint32_t count = 0;
    for (uint32_t i = 0; i < weights->layers; i++) {
        const struct step_layer *layer = &weights->layer[i];
        joints[count++] = (struct joint){{layer->q, layer->k, layer->v}, 3};
        joints[count++] = (struct joint){{layer->attention_output}, 1};
        joints[count++] = (struct joint){{layer->gate, layer->up}, 2};
        joints[count++] = (struct joint){{layer->down}, 1};
    }
    joints[count++] = (struct joint){{weights->output}, 1};
    return count;
}

static uint32_t units_of_joint(const struct joint *joint)
{
    uint32_t units = 0;
    for (uint32_t i = 0; i < joint->count; i++)
        units += unit_count(joint->parts[i]);
    return units;
}

/* The thread that computes a unit of a product of few rows: even parts, in order. */
static uint32_t owner_of(uint32_t unit, uint32_t units, uint32_t threads)
{
    uint32_t thread = 0;
    while (thread + 1 < threads) {
        uint64_t next = (uint64_t)units * (thread + 1);
        uint64_t first = units >= threads ? next / threads : (next + threads - 1) / threads;
        if (unit < first)
            break;
        thread++;
    }
    return thread;
}

/* Pages that a unit has to itself or shares with its neighbours: those that begin inside it. */
static void tally_unit(const struct machine *machine, const struct matrix *matrix, uint32_t unit,
                       int32_t node, struct tally *tally)
{
    uint32_t first = unit * UNIT_PANELS, panels = panel_count(matrix) - first;
    panels = panels < UNIT_PANELS ? panels : UNIT_PANELS;
    uintptr_t begin = (uintptr_t)panel_at(matrix, first);
    uintptr_t end = begin + panels * panel_bytes(matrix);
    for (uintptr_t page = (begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; page < end;
         page += PAGE_BYTES) {
        tally->pages++;
        tally->right += lies_well(machine, node_of_page((const void *)page), node) ? 1 : 0;
    }
}

static struct tally tally_weights(const struct machine *machine, const struct team *team,
                                  const struct joint *joints, uint32_t count)
{
    struct tally tally = {0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t units = units_of_joint(&joints[i]), unit = 0;
        for (uint32_t p = 0; p < joints[i].count; p++)
            for (uint32_t u = 0; u < unit_count(joints[i].parts[p]); u++, unit++) {
                int32_t node = team->nodes[owner_of(unit, units, team->threads)];
                tally_unit(machine, joints[i].parts[p], u, node, &tally);
            }
    }
    return tally;
}

/* ---- Who reads first ---- */

/* What note_read() looks at and counts. */
static struct {
    const struct machine *machine;
    _Atomic uint32_t product; /* number of the present one */
    uint32_t awaited;         /* threads, each of which has a part of it; 0: nobody waits */
    _Atomic uint32_t arrived; /* of them */
    _Atomic uint32_t all, all_right, first, first_right; /* reads; of pages of the reader's node */
} watch;

/* Runs on the thread that reads and opens the page again. The first read of a thread is of its own
 * part and waits for those of the others: whoever were done could help those that had not begun. */
static void note_read(int number, siginfo_t *info, void *context)
{
    static _Thread_local uint32_t product_seen;
    unsigned processor = 0, node = 0;
    void *page = (void *)((uintptr_t)info->si_addr / PAGE_BYTES * PAGE_BYTES);
    (void)number;
    (void)context;
    if (mprotect(page, PAGE_BYTES, PROT_READ | PROT_WRITE) != 0)
        _exit(EXIT_LOST);
    int32_t page_node = node_of_page(page);
    syscall(SYS_getcpu, &processor, &node, NULL);
    uint32_t right = lies_well(watch.machine, page_node, (int32_t)node) ? 1 : 0;
    atomic_fetch_add(&watch.all, 1);
    atomic_fetch_add(&watch.all_right, right);
    if (product_seen == watch.product || watch.awaited == 0)
        return;
    product_seen = watch.product;
    atomic_fetch_add(&watch.first, 1);
    atomic_fetch_add(&watch.first_right, right);
    atomic_fetch_add(&watch.arrived, 1);
    while (watch.arrived < watch.awaited)
        sched_yield();
}

static void close_pages(const struct matrix *matrix)
{
    const struct cpu_matrix *pieces = cpu_matrix_of(matrix);
    for (uint32_t i = 0; i < pieces->pieces; i++) {
        const struct panel_piece *piece = &pieces->piece[i];
        uintptr_t begin = (uintptr_t)piece->panels;
        uintptr_t end = begin + (piece->end - piece->first) * panel_bytes(matrix);
        begin = (begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        end = end / PAGE_BYTES * PAGE_BYTES;
        if (begin < end)
            CHECK(mprotect((void *)begin, end - begin, PROT_NONE) == 0);
    }
}

static void multiply(struct backend *backend, const struct joint *joint)
{
    static float input[4096], output[MATMUL_PARTS_MAX][4096];
    static _Alignas(64) uint8_t prepared[64 << 10]; /* zeros are zeros in every form */
    struct matmul_args args = {.input = input,
                               .prepared = prepared,
                               .rows = 1,
                               .columns = joint->parts[0]->columns,
                               .part_count = joint->count};
    CHECK(args.columns <= 4096);
    CHECK(backend->operations->prepared_bytes(backend, 1, args.columns) <= sizeof prepared);
    for (uint32_t i = 0; i < joint->count; i++) {
        CHECK(joint->parts[i]->rows <= 4096);
        args.parts[i] = (struct matmul_part){joint->parts[i], output[i]};
    }
    backend->operations->matmul(backend, &args);
}

static void watch_reads(const struct machine *machine, struct backend *backend,
                        const struct joint *joints, uint32_t count)
{
    const struct sigaction action = {.sa_sigaction = note_read, .sa_flags = SA_SIGINFO};
    watch.machine = machine;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    for (uint32_t i = 0; i < count; i++) {
        /* Less than two units may have no page that is closed. */
        bool all = units_of_joint(&joints[i]) >= 2 * backend->threads && backend->threads > 1;
        watch.awaited = all ? backend->threads : 0;
        watch.arrived = 0;
        watch.product++;
        for (uint32_t p = 0; p < joints[i].count; p++)
            close_pages(joints[i].parts[p]);
        multiply(backend, &joints[i]);
    }
    signal(SIGSEGV, SIG_DFL);
}

/* ---- Bits and the KV pool ---- */

static uint64_t hash_of_answers(struct engine *engine)
{
    static uint32_t prompt[PROMPT_TOKENS];
    engine_prompt(engine, 7, PROMPT_TOKENS, prompt);
    struct engine_trace trace = engine_run(engine, &(struct engine_request){
                                                       .slot = 0,
                                                       .prompt = prompt,
                                                       .prompt_tokens = PROMPT_TOKENS,
                                                       .answers = ANSWERS,
                                                       .chunk = CHUNK_TOKENS,
                                                   });
    return XXH3_64bits(&trace, sizeof trace);
}

static void print_pool(const struct engine *engine)
{
    uint32_t pages[NODES_MAX] = {0};
    const uint8_t *memory = engine->pool.memory;
    for (uint64_t at = 0; at < engine->pool.bytes; at += PAGE_BYTES) {
        int32_t node = node_of_page(memory + at);
        if (node >= 0 && node < NODES_MAX)
            pages[node]++;
    }
    for (uint32_t node = 0; node < NODES_MAX; node++)
        if (pages[node] > 0)
            printf(" pool_node%u=%u", node, pages[node]);
}

/* ---- One run ---- */

enum mode { MODE_FREE, MODE_PIN, MODE_REFUSED, MODE_COUNT };

static const char *const mode_names[MODE_COUNT] = {"free", "pin", "refused"};

static enum mode mode_of(const char *name)
{
    enum mode mode = MODE_FREE;
    while (mode < MODE_COUNT && strcmp(mode_names[mode], name) != 0)
        mode++;
    return mode;
}

static void refuse_policies(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    CHECK(syscall(SYS_mbind, NULL, 0UL, 0, NULL, 0UL, 0U) == -1 && errno == EPERM);
}

static struct engine *open_engine(uint32_t threads, bool pin, enum cpu_isa isa)
{
    struct engine_options options = engine_defaults();
    options.model.width = 128;
    options.model.ffn_width = 512;
    options.model.heads = 4;
    options.model.head_dim = 32;
    options.model.vocabulary = 1024;
    options.model.type = GGUF_TENSOR_Q8_0;
    options.isa = isa;
    options.threads = threads;
    options.pin_threads = pin;
    options.unpoisoned = true;
    options.context = 512;
    options.step_tokens = CHUNK_TOKENS;
    return engine_open(&options);
}

static void print_nodes(const struct team *team)
{
    printf(" thread_nodes=");
    for (uint32_t i = 0; i < team->threads; i++)
        printf("%d%s", team->nodes[i], team->kept[i] ? "" : "?");
}

static void look(const struct machine *machine, struct engine *engine, enum mode mode,
                 const cpu_set_t *allowed)
{
    struct joint joints[64];
    struct team team;
    bool kept = true;
    struct pool *pool = cpu_backend_of(engine->backend)->pool;
    uint32_t count = list_joints(engine, joints);
    read_team(machine, &team);
    print_nodes(&team);
    for (uint32_t i = 0; i < team.threads; i++)
        kept = kept && team.kept[i];
    expect(team.threads == pool_threads(pool), "a thread for each that was asked for");
    expect(kept, "each thread may run on one node only");
    expect(mode != MODE_PIN || is_pinned(&team, allowed), "each thread has a core of its own");
    struct tally weights = tally_weights(machine, &team, joints, count);
    printf(" weights=%u/%u", weights.right, weights.pages);
    expect(mode == MODE_REFUSED || (weights.pages > 0 && weights.right == weights.pages),
           "the weights of a thread's part lie on its node");
    struct stack_job job = {.machine = machine, .threads = team.threads};
    pool_run(pool, look_at_stack, &job, team.threads, 1);
    printf(" stacks=%u/%u", job.right, job.pages);
    expect(job.pages == team.threads && job.right == job.pages,
           "the stack of a thread lies on its node");
    watch_reads(machine, engine->backend, joints, count);
    printf(" first_reads=%u/%u reads=%u/%u", watch.first_right, watch.first, watch.all_right,
           watch.all);
    expect(mode == MODE_REFUSED || watch.first_right == watch.first,
           "a thread begins with weights of its node");
    print_pool(engine);
}

int main(int argc, char **argv)
{
    static struct machine machine;
    enum cpu_isa isa;
    uint32_t isa_number = 0;
    enum mode mode = argc == 4 ? mode_of(argv[2]) : MODE_COUNT;
    if (mode == MODE_COUNT || !isa_from_name(argv[3], &isa_number)) {
        fprintf(stderr, "usage: numa_placement THREADS free|pin|refused ISA\n");
        return 64;
    }
    isa = (enum cpu_isa)isa_number;
    read_machine(&machine);
    cpu_set_t before, after;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    uint32_t threads = (uint32_t)strtoul(argv[1], NULL, 10);
    if (mode == MODE_REFUSED)
        refuse_policies();
    struct engine *engine = open_engine(threads, mode == MODE_PIN, isa);
    printf("threads=%u %s %s bits=%016" PRIx64, engine->backend->threads, argv[2], argv[3],
           hash_of_answers(engine));
    if (machine.nodes < 2) {
        printf(" SKIPPED places: one memory node; tests/numa/run.sh emulates others\n");
        return EXIT_ONE_NODE;
    }
    look(&machine, engine, mode, &before);
    engine_close(engine);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    expect(CPU_EQUAL(&before, &after), "the caller may run where it could before");
    printf("\n");
    return failures == 0 ? 0 : 1;
}
