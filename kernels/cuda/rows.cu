/* Kernels of one pass over rows: the begin of a step, norms, rotation, gating, packing. All are
 * bound by their bytes; a row is one CTA or one warp. */
#include "common/random.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

namespace
{

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP };

enum { EARLY_ENTRIES = 128 };

/* What a thread of the first CTA asks the host for before it knows how much of it counts. */
struct early_lists {
    struct table_entry entry;
    uint32_t sample_row, sample_position, sample_slot;
    struct sampling sampling;
};

__device__ __forceinline__ struct early_lists ask_early(const struct begin_args &args)
{
    const struct step_order &order = args.order;
    const uint32_t i = threadIdx.x;
    struct early_lists early = {};
    if (blockIdx.x > 0)
        return early;
    if (i < args.samples) {
        early.sample_row = order.sample_rows[i];
        early.sample_position = order.sample_positions[i];
        early.sample_slot = order.sample_slots[i];
        early.sampling = order.sampling[i];
    }
    if (i < EARLY_ENTRIES && i < args.entries_max)
        early.entry = order.entries[i];
    return early;
}

/* What concerns all rows: new entries of the block table, spans, samples. */
__device__ void take_lists(const struct begin_args &args, const struct step_header &header,
                           const struct early_lists &early)
{
    const struct step_order &order = args.order;
    const uint32_t first = blockIdx.x * THREADS + threadIdx.x, stride = gridDim.x * THREADS;
    for (uint32_t i = first; i < header.entry_count; i += stride) {
        const struct table_entry entry = i < EARLY_ENTRIES ? early.entry : order.entries[i];
        args.table[entry.index] = entry.block;
    }
    for (uint32_t i = first; i < header.span_count; i += stride)
        args.spans[i] = order.spans[i];
    for (uint32_t i = first; i < header.counts.samples; i += stride) {
        const bool asked = i < THREADS;
        args.sample_rows[i] = asked ? early.sample_row : order.sample_rows[i];
        args.sample_positions[i] = asked ? early.sample_position : order.sample_positions[i];
        args.sample_slots[i] = asked ? early.sample_slot : order.sample_slots[i];
        args.sampling[i] = asked ? early.sampling : order.sampling[i];
    }
}

/* Grid: one CTA per row. Takes the order of the host into device memory and starts the residual
 * stream with the embedding of each row's token. Bound by one way over the bus and back, so all
 * that is known by address is asked for at once. */
__global__ void __launch_bounds__(THREADS) begin_kernel(const __grid_constant__ begin_args args)
{
    __shared__ uint32_t mine[3];
    __shared__ struct step_header header;
    const uint32_t row = blockIdx.x;
    const uint32_t *sources[] = {args.order.tokens, args.order.slots, args.order.positions};
    wait_for_inputs();
    let_next_start();
    if (row == 0 && threadIdx.x == 0)
        *args.begun_ns = device_clock_ns();
    /* once for the CTA: every warp that asks is one more way over the bus */
    if (threadIdx.x == WARP)
        header = *args.order.header;
    if (threadIdx.x < 3)
        mine[threadIdx.x] = sources[threadIdx.x][row];
    const struct early_lists early = ask_early(args);
    __syncthreads();
    take_lists(args, header, early);
    if (row == 0 && threadIdx.x == 0) {
        *args.counts = header.counts;
        *args.decoding = header.decoding;
    }
    if (row >= header.counts.rows)
        return;
    const uint32_t slot = mine[1];
    const uint32_t token = mine[0] != STEP_TOKEN_FROM_SLOT ? mine[0] : args.slot_tokens[slot];
    if (threadIdx.x == 0) {
        args.positions[row] = mine[2];
        args.slots[row] = slot;
    }
    const uint4 *from = (const uint4 *)(args.embedding + (uint64_t)token * args.width);
    uint4 *to = (uint4 *)(args.residual + (uint64_t)row * args.width);
    for (uint32_t i = threadIdx.x; i < args.width / 8; i += THREADS)
        to[i] = __ldg(from + i);
}

__device__ __forceinline__ uint4 added(const uint4 &residual, const uint4 &addend)
{
    float a[8], b[8];
    unpack_8(residual, a);
    unpack_8(addend, b);
    uint32_t sums[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        sums[j] = pack_2(residual_of(__float2bfloat16_rn(a[2 * j]), b[2 * j]),
                         residual_of(__float2bfloat16_rn(a[2 * j + 1]), b[2 * j + 1]));
    return make_uint4(sums[0], sums[1], sums[2], sums[3]);
}

__device__ __forceinline__ void put_vector(const struct norm_args &args, uint32_t row,
                                           uint32_t vector, const uint4 &value)
{
    if (args.out_rows == 0) {
        ((uint4 *)(args.output + (uint64_t)row * args.columns))[vector] = value;
        return;
    }
    if (args.out_blocks) {
        ((uint4 *)args.output)[(uint64_t)vector * args.out_rows + row] = value;
        return;
    }
    const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        *(uint32_t *)(args.output + operand_index(row, vector * 8 + 2 * i, args.out_rows)) =
            words[i];
}

/* Grid: a CTA per row. A thread keeps its first vector in registers; wider rows are read twice. */
__global__ void __launch_bounds__(NORM_THREADS) norm_kernel(const __grid_constant__ norm_args args)
{
    __shared__ float warp_sums[NORM_WARPS];
    const uint32_t row = blockIdx.x, thread = threadIdx.x, vectors = args.columns / 8;
    struct norm_weights weights = {};
    if (args.weight != NULL && thread < vectors)
        weights = load_weights(args.weight, thread);
    if (args.next_early)
        let_next_start();
    wait_for_inputs();
    if (args.progress != NULL && row == 0 && thread == 0)
        *args.progress = args.progress_value;
    const uint32_t from = args.rows_taken != NULL ? args.rows_taken[row] : row;
    const uint4 *residual = (const uint4 *)(args.residual + (uint64_t)from * args.columns);
    const uint4 *addend = (const uint4 *)(args.addend + (uint64_t)from * args.columns);
    uint4 *sums = (uint4 *)(args.residual_out + (uint64_t)from * args.columns);
    uint4 first = {}, second = {};
    if (thread < vectors) { /* on their way while the count is: rows past the last are there too */
        first = __ldcg(residual + thread);
        second = args.addend != NULL ? __ldcg(addend + thread) : second;
    }
    if (row >= *args.count)
        return;
    float sum = 0.0f;
    for (uint32_t v = thread; v < vectors; v += NORM_THREADS) {
        uint4 value = v == thread ? first : __ldcg(residual + v);
        if (args.addend != NULL) {
            value = added(value, v == thread ? second : __ldcg(addend + v));
            sums[v] = value;
        }
        first = v == thread ? value : first;
        sum = add_squares(sum, value);
    }
    sum = add_lanes(sum);
    if (thread % WARP == 0)
        warp_sums[thread / WARP] = sum;
    __syncthreads();
    if (!args.next_early)
        let_next_start();
    const float scale = norm_scale(warp_sums, args.columns, args.epsilon);
    if (thread < vectors)
        put_vector(args, row, thread, normalised(first, scale, weights));
    for (uint32_t v = thread + NORM_THREADS; v < vectors; v += NORM_THREADS)
        put_vector(args, row, v,
                   normalised(args.addend != NULL ? sums[v] : __ldcg(residual + v), scale,
                              load_weights(args.weight, v)));
}

/* Grid: one CTA per row; a thread takes 8 pairs of dims. */
__global__ void __launch_bounds__(THREADS)
    heads_kernel(const __grid_constant__ kv_target target, const __nv_bfloat16 *products,
                 const uint32_t *count)
{
    wait_for_inputs();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *count)
        return;
    const struct kv_geometry &g = target.geometry;
    const uint32_t dim = g.head_dim, half = dim / 2, vectors = half / 8;
    const uint32_t heads = target.heads + 2 * g.kv_heads;
    const __nv_bfloat16 *from = products + (uint64_t)row * heads * dim;
    const struct row_place place = place_of(target, row);
    for (uint32_t i = threadIdx.x; i < heads * vectors; i += THREADS) {
        const uint32_t head = i / vectors, j = i % vectors * 8;
        float low[8], high[8];
        unpack_8(__ldcg((const uint4 *)(from + head * dim + j)), low);
        unpack_8(__ldcg((const uint4 *)(from + head * dim + half + j)), high);
        uint32_t first[4], second[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const struct half_pair a =
                turned(target, place, head, j + 2 * k, low[2 * k], high[2 * k]);
            const struct half_pair b =
                turned(target, place, head, j + 2 * k + 1, low[2 * k + 1], high[2 * k + 1]);
            first[k] = pack_2(a.low, b.low);
            second[k] = pack_2(a.high, b.high);
            check_range(target, row, head, a);
            check_range(target, row, head, b);
        }
        *(uint4 *)head_address(target, place, row, head, j) =
            make_uint4(first[0], first[1], first[2], first[3]);
        *(uint4 *)head_address(target, place, row, head, half + j) =
            make_uint4(second[0], second[1], second[2], second[3]);
    }
}

/* Grid: (width / (8 THREADS), row). */
__global__ void __launch_bounds__(THREADS) gate_kernel(const __grid_constant__ gate_args args)
{
    const uint32_t row = blockIdx.y, vector = blockIdx.x * THREADS + threadIdx.x;
    wait_for_inputs();
    let_next_start();
    if (row >= *args.count || vector >= args.width / 8)
        return;
    const uint4 *gate = (const uint4 *)(args.products + (uint64_t)row * 2 * args.width);
    float g[8], u[8];
    unpack_8(__ldcg(gate + vector), g);
    unpack_8(__ldcg(gate + args.width / 8 + vector), u);
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = pack_2(silu_mul_of(g[2 * i], u[2 * i]), silu_mul_of(g[2 * i + 1], u[2 * i + 1]));
    ((uint4 *)(args.output + (uint64_t)row * args.width))[vector] =
        make_uint4(out[0], out[1], out[2], out[3]);
}

/* Grid: a CTA per row of the operand; zeros past the last row. */
__global__ void __launch_bounds__(THREADS) operand_kernel(const __grid_constant__ operand_args args)
{
    wait_for_inputs();
    let_next_start();
    const uint32_t row = blockIdx.x;
    for (uint32_t pair = threadIdx.x; pair < args.columns / 2; pair += THREADS)
        *(uint32_t *)(args.output + operand_index(row, pair * 2, args.out_rows)) =
            row < args.row_count
                ? ((const uint32_t *)(args.rows + (uint64_t)row * args.columns))[pair]
                : 0;
}

/* Grid: a warp per (tile, step). */
__global__ void __launch_bounds__(THREADS)
    pack_kernel(const __grid_constant__ product product, uint4 *packed)
{
    const uint64_t index = (uint64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const uint32_t steps = product.columns / 16, lane = threadIdx.x % WARP;
    if (index >= (uint64_t)product.tiles * steps)
        return;
    const uint32_t tile = (uint32_t)(index / steps), step = (uint32_t)(index % steps);
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = product_row(&product, tile, lane / 4 + i % 2 * 8);
        const uint32_t k = step * 16 + lane % 4 * 2 + i / 2 * 8;
        words[i] = row < product.rows
                       ? *(const uint32_t *)(product.values + (uint64_t)row * product.columns + k)
                       : 0;
    }
    packed[index * WARP + lane] = make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void __launch_bounds__(THREADS)
    fill_kernel(__nv_bfloat16 *values, uint64_t count, uint64_t seed)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        const struct philox_block block = philox(seed, (uint32_t)i, (uint32_t)(i >> 32), 0, 0);
        float value = 0.0f; /* a sum of four uniform numbers, variance 1 */
        for (uint32_t word : block.word)
            value += (float)(word >> 8) * 0x1p-24f - 0.5f;
        value *= 1.7320508f;
        values[i] = __float2bfloat16_rn(block.word[0] % 4096 == 0 ? value * 64.0f : value);
    }
}

__global__ void __launch_bounds__(THREADS)
    compare_kernel(const uint32_t *a, const uint32_t *b, uint64_t words, uint32_t *differences)
{
    uint32_t found = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < words;
         i += (uint64_t)gridDim.x * THREADS)
        found += a[i] != b[i] ? 1 : 0;
    if (found != 0)
        atomicAdd(differences, found);
}

} // namespace

cudaError_t rows_prepare()
{
    const void *kernels[] = {(const void *)begin_kernel, (const void *)norm_kernel,
                             (const void *)heads_kernel, (const void *)gate_kernel,
                             (const void *)operand_kernel};
    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

cudaError_t begin_launch(const struct begin_args *args, cudaStream_t stream)
{
    return launch_overlapped(begin_kernel, dim3(args->rows), THREADS, 0, stream, *args);
}

cudaError_t norm_launch(const struct norm_args *args, cudaStream_t stream)
{
    return launch_overlapped(norm_kernel, dim3(args->rows), NORM_THREADS, 0, stream, *args);
}

cudaError_t heads_launch(const struct kv_target *target, const __nv_bfloat16 *products,
                         const uint32_t *count, uint32_t rows, cudaStream_t stream)
{
    return launch_overlapped(heads_kernel, dim3(rows), THREADS, 0, stream, *target, products,
                             count);
}

cudaError_t gate_launch(const struct gate_args *args, cudaStream_t stream)
{
    const dim3 grid((args->width / 8 + THREADS - 1) / THREADS, args->rows);
    return launch_overlapped(gate_kernel, grid, THREADS, 0, stream, *args);
}

cudaError_t operand_launch(const struct operand_args *args, cudaStream_t stream)
{
    return launch_overlapped(operand_kernel, dim3(args->out_rows), THREADS, 0, stream, *args);
}

cudaError_t pack_launch(const struct product *product, uint4 *packed, cudaStream_t stream)
{
    const uint64_t warps = (uint64_t)product->tiles * (product->columns / 16);
    pack_kernel<<<(uint32_t)((warps + WARPS - 1) / WARPS), THREADS, 0, stream>>>(*product, packed);
    return cudaGetLastError();
}

cudaError_t fill_launch(__nv_bfloat16 *values, uint64_t count, uint64_t seed, cudaStream_t stream)
{
    fill_kernel<<<1024, THREADS, 0, stream>>>(values, count, seed);
    return cudaGetLastError();
}

cudaError_t compare_launch(const void *a, const void *b, uint64_t words, uint32_t *differences,
                           cudaStream_t stream)
{
    compare_kernel<<<264, THREADS, 0, stream>>>((const uint32_t *)a, (const uint32_t *)b, words,
                                                differences);
    return cudaGetLastError();
}
