#include "kernels/cpu/placement.h"

#include "common/check.h"

/* First processors of the cores of a node; how many. */
static uint32_t cores_on(const struct processors *processors, uint32_t node, uint32_t *cores)
{
    uint32_t count = 0;
    for (uint32_t core = 0; core < processors->count; core++)
        if (processors->node_of[core] == node)
            cores[count++] = processors->first_of[core];
    return count;
}

/* Adds the threads that fall to a node whose last core is number `cores_end` in the order of the
 * nodes. */
static void add_place(const struct processors *processors, uint32_t node, uint32_t threads,
                      uint32_t cores_end, struct placement *placement)
{
    uint32_t cores[CORES_MAX], count = cores_on(processors, node, cores);
    uint32_t first = placement_first_thread(placement, placement->count);
    uint64_t share = (uint64_t)threads * cores_end;
    uint32_t end = (uint32_t)((share + processors->count - 1) / processors->count);
    if (end == first)
        return;
    placement->place[placement->count++] =
        (struct place){.node = node, .threads_end = end, .processors = processors->on_node[node]};
    for (uint32_t thread = first; thread < end; thread++)
        placement->core_of[thread] = cores[(thread - first) % count];
}

void placement_find(const struct processors *processors, uint32_t threads, uint32_t processor,
                    struct placement *out_placement)
{
    uint32_t first_node = 0, nodes = 0, cores_end = 0;
    CHECK(threads >= 1 && threads <= POOL_THREADS_MAX);
    for (uint32_t node = 0; node < MEMORY_NODES_MAX; node++)
        if (processor < CPU_SETSIZE && CPU_ISSET(processor, &processors->on_node[node]))
            first_node = node;
    *out_placement = (struct placement){.count = 0};
    for (uint32_t i = 0; i < MEMORY_NODES_MAX; i++) {
        uint32_t node = (first_node + i) % MEMORY_NODES_MAX, cores[CORES_MAX];
        uint32_t count = cores_on(processors, node, cores);
        if (count == 0)
            continue;
        nodes++;
        cores_end += count;
        add_place(processors, node, threads, cores_end, out_placement);
    }
    out_placement->kept = nodes > 1;
    CHECK(placement_first_thread(out_placement, out_placement->count) == threads);
}

uint32_t placement_first_thread(const struct placement *placement, uint32_t place)
{
    return place == 0 ? 0 : placement->place[place - 1].threads_end;
}
