/* Matrix steps of four warps with 16 to 128 columns, both operands in shared memory. */
#ifndef TANDEM_KERNELS_CUDA_WIDE_STEP_CUH
#define TANDEM_KERNELS_CUDA_WIDE_STEP_CUH

#include <stdint.h>

/* C (64 x N) += A B for 16 k; low words of the descriptors, groups of 8 rows 128 bytes apart in
 * both. Which operand holds the weights does not change a bit. */
__device__ __forceinline__ void wide_step(float (&c)[8], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%8, %10};\n"
                 "mov.b64 db, {%9, %10};\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[12], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%12, %14};\n"
                 "mov.b64 db, {%13, %14};\n"
                 "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[16], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%16, %18};\n"
                 "mov.b64 db, {%17, %18};\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[24], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%24, %26};\n"
                 "mov.b64 db, {%25, %26};\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[32], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%32, %34};\n"
                 "mov.b64 db, {%33, %34};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
                   "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[64], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%64, %66};\n"
                 "mov.b64 db, {%65, %66};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
                   "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
                   "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
                   "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
                   "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                   "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),
                   "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
                   "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
                   "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                 : "r"(a), "r"(b), "r"(8));
}

#endif
