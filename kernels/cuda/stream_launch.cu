/* Host side of the persistent step: which instance serves, how its shared memory is divided, and
 * the packing of the weights into streams. */
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/stream_instances.h"

namespace
{

enum { THREADS = 256, KERNEL_THREADS = 544, STAGING_THREADS = 256 };

stream_kernel_type kernel_of(uint32_t rows, uint32_t width, uint32_t head_dim)
{
    const uint32_t vectors = (width / 8 + STAGING_THREADS - 1) / STAGING_THREADS;
    switch (rows) {
    case 1:
        return stream_kernel_of_1(vectors, head_dim);
    case 2:
        return stream_kernel_of_2(vectors, head_dim);
    case 4:
        return stream_kernel_of_4(vectors, head_dim);
    default:
        return NULL;
    }
}

stream_kernel_type kernel_of(const struct stream_args *args, uint32_t rows)
{
    return kernel_of(rows, args->shape.product[STREAM_HEADS].columns,
                     args->kv.geometry.head_dim);
}

uint32_t shared_bytes(const struct stream_args *args)
{
    return args->slots * STREAM_STAGE_BYTES + args->operand_bytes + STREAM_OPERAND_SLACK +
           STREAM_BARRIERS_BYTES;
}

/* The CTA that owns row group `group`. */
__device__ __forceinline__ uint32_t owner_of(const struct stream_product &product, uint32_t group)
{
    const uint32_t unit = group / product.unit_groups, larger = product.units_of_all + 1;
    return unit < product.units_of_first * larger
               ? unit / larger
               : (unit - product.units_of_first) / product.units_of_all;
}

struct pack_args {
    struct stream_shape shape;
    struct product product;
    uint32_t groups; /* of the product */
    uint32_t layer, kind;
    uint8_t *weights;
};

/* Grid: a thread per 16 bytes: (row group, 8 columns, row). Rows of heads stand in natural order,
 * those of pairs as in the packed tiles. */
__global__ void __launch_bounds__(THREADS) pack_stream(const __grid_constant__ struct pack_args args)
{
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t blocks = product.columns / 8, groups = args.groups;
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t row = (uint32_t)(index % 8), block = (uint32_t)(index / 8 % blocks);
    const uint64_t group64 = index / 8 / blocks;
    if (group64 >= groups)
        return;
    const uint32_t group = (uint32_t)group64;
    const uint32_t cta = owner_of(product, group);
    const uint32_t local = group - stream_first(&product, cta);
    const uint32_t round = local / STREAM_ROUND_GROUPS;
    const uint32_t together =
        stream_round(stream_groups(&product, cta), round);
    const uint64_t to = stream_offset(&args.shape, cta, args.layer, args.kind) +
                        stream_bytes(round * STREAM_ROUND_GROUPS, product.columns) +
                        (uint64_t)block * together * 128 + local % STREAM_ROUND_GROUPS * 128 +
                        row * 16;
    const uint32_t natural = args.kind == STREAM_PAIRS
                                 ? product_row(&args.product, group / 2, group % 2 * 8 + row)
                                 : group * 8 + row;
    uint4 value = {0, 0, 0, 0};
    if (natural < product.rows)
        value = ((const uint4 *)(args.product.values + (uint64_t)natural * product.columns))[block];
    *(uint4 *)(args.weights + to) = value;
}

} // namespace

bool stream_serves(uint32_t rows, uint32_t width, uint32_t head_dim)
{
    return kernel_of(rows, width, head_dim) != NULL;
}

cudaError_t stream_prepare(struct stream_args *args, uint32_t rows)
{
    uint32_t widest = 0;
    for (const struct stream_product &product : args->shape.product)
        widest = product.columns > widest ? product.columns : widest;
    const uint32_t operand = (widest * 2 * rows + 1023) / 1024 * 1024;
    args->operand_bytes =
        operand > STREAM_SCRATCH_BYTES ? operand : (uint32_t)STREAM_SCRATCH_BYTES;
    args->slots = 0;
    const uint32_t others = shared_bytes(args);
    const struct kv_geometry *g = &args->kv.geometry;
    const uint32_t segment_slots =
        4 * ATTENTION_SEGMENT_KEYS * g->head_dim / STREAM_STAGE_BYTES; /* all in the ring at once */
    const stream_kernel_type kernel = kernel_of(args, rows);
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess)
        return error;
    const uint32_t fixed = (uint32_t)attributes.sharedSizeBytes + others;
    if (fixed + (segment_slots + 1) * STREAM_STAGE_BYTES > STREAM_SHARED_MAX)
        return cudaErrorInvalidConfiguration;
    args->slots = (STREAM_SHARED_MAX - fixed) / STREAM_STAGE_BYTES;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)shared_bytes(args));
}

cudaError_t stream_launch(const struct stream_args *args, uint32_t rows, cudaStream_t stream)
{
    return launch_overlapped(kernel_of(args, rows), dim3(args->shape.ctas), KERNEL_THREADS,
                             shared_bytes(args), stream, *args);
}

cudaError_t stream_pack(const struct stream_shape *shape, const struct product *product,
                        uint32_t layer, uint32_t kind, uint8_t *weights, cudaStream_t stream)
{
    const struct stream_product *to = &shape->product[kind];
    const uint32_t groups = stream_first(to, shape->ctas);
    const uint64_t threads = (uint64_t)groups * to->columns;
    const struct pack_args args = {*shape, *product, groups, layer, kind, weights};
    pack_stream<<<(uint32_t)((threads + THREADS - 1) / THREADS), THREADS, 0, stream>>>(args);
    return cudaGetLastError();
}
