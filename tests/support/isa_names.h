/* Instruction sets of the CPU backend by name, for programs of the tests that take one as an
 * argument. */
#ifndef TANDEM_SUPPORT_ISA_NAMES_H
#define TANDEM_SUPPORT_ISA_NAMES_H

#include "kernels/backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ISA_NAMES_HELP "auto, plain, avx2, avx512, avx512-bf16 or amx"

/* enum cpu_isa into out_isa; false for another name. */
static inline bool isa_from_name(const char *name, uint32_t *out_isa)
{
    static const struct {
        const char *name;
        uint32_t isa;
    } names[] = {{"auto", CPU_ISA_AUTO},
                 {"plain", CPU_ISA_PLAIN},
                 {"avx2", CPU_ISA_AVX2},
                 {"avx512", CPU_ISA_AVX512},
                 {"avx512-bf16", CPU_ISA_AVX512_BF16},
                 {"amx", CPU_ISA_AMX}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out_isa = names[i].isa;
            return true;
        }
    }
    return false;
}

#endif
