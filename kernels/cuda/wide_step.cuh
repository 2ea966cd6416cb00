/* Matrix steps of four warps with 16 to 192 columns, both operands in shared memory. */
#ifndef TANDEM_KERNELS_CUDA_WIDE_STEP_CUH
#define TANDEM_KERNELS_CUDA_WIDE_STEP_CUH

#include <stdint.h>

/* The accumulators of a step, as the instruction names them and as operands. */
#define WIDE_NAMES_8  "%0,%1,%2,%3,%4,%5,%6,%7"
#define WIDE_NAMES_12 WIDE_NAMES_8 ",%8,%9,%10,%11"
#define WIDE_NAMES_16 WIDE_NAMES_12 ",%12,%13,%14,%15"
#define WIDE_NAMES_24 WIDE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WIDE_NAMES_32 WIDE_NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define WIDE_NAMES_48                                                                              \
    WIDE_NAMES_32                                                                                  \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WIDE_NAMES_64                                                                              \
    WIDE_NAMES_48                                                                                  \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WIDE_NAMES_96                                                                              \
    WIDE_NAMES_64                                                                                  \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                             \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

#define WIDE_4(c, i)  "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define WIDE_8(c, i)  WIDE_4(c, i), WIDE_4(c, (i) + 4)
#define WIDE_16(c, i) WIDE_8(c, i), WIDE_8(c, (i) + 8)
#define WIDE_32(c, i) WIDE_16(c, i), WIDE_16(c, (i) + 16)

/* C (64 x N) += A B for 16 k; low words of the descriptors, groups of 8 rows 128 bytes apart in
 * both. Which operand holds the weights does not change a bit. COUNT = N / 2; A, B, HIGH: the
 * names of what follows the accumulators. */
#define WIDE_STEP(N, COUNT, A, B, HIGH, ...)                                                       \
    __device__ __forceinline__ void wide_step(float(&c)[COUNT], uint32_t a, uint32_t b)            \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .b64 da, db;\n"                                                         \
                     "mov.b64 da, {" A ", " HIGH "};\n"                                            \
                     "mov.b64 db, {" B ", " HIGH "};\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N                                        \
                     "k16.f32.bf16.bf16 {" WIDE_NAMES_##COUNT "}, da, db, 1, 1, 1, 0, 0;\n"        \
                                                              "}"                                  \
                     : __VA_ARGS__                                                                 \
                     : "r"(a), "r"(b), "r"(8));                                                    \
    }

WIDE_STEP(16, 8, "%8", "%9", "%10", WIDE_8(c, 0))
WIDE_STEP(24, 12, "%12", "%13", "%14", WIDE_8(c, 0), WIDE_4(c, 8))
WIDE_STEP(32, 16, "%16", "%17", "%18", WIDE_16(c, 0))
WIDE_STEP(48, 24, "%24", "%25", "%26", WIDE_16(c, 0), WIDE_8(c, 16))
WIDE_STEP(64, 32, "%32", "%33", "%34", WIDE_32(c, 0))
WIDE_STEP(96, 48, "%48", "%49", "%50", WIDE_32(c, 0), WIDE_16(c, 32))
WIDE_STEP(128, 64, "%64", "%65", "%66", WIDE_32(c, 0), WIDE_32(c, 32))
WIDE_STEP(192, 96, "%96", "%97", "%98", WIDE_32(c, 0), WIDE_32(c, 32), WIDE_32(c, 64))

#undef WIDE_STEP

#endif
