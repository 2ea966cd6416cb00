#include "worker/config.h"

#include "common/geometry.h"
#include "common/log.h"
#include "kernels/backend.h"
#include "proto/limits.h"

#include <inttypes.h>

#define KIB (UINT64_C(1) << 10)
#define GIB (UINT64_C(1) << 30)

static const struct option_choice KV_TYPES[] = {
    {"f16", KV_TYPE_F16}, {"f32", KV_TYPE_F32}, {"bf16", KV_TYPE_BF16}, {NULL, 0}};

static const struct option_choice BACKENDS[] = {
    {"auto", BACKEND_AUTO}, {"cpu", BACKEND_CPU}, {"cuda", BACKEND_CUDA}, {NULL, 0}};

static const struct option_choice CPU_ISAS[] = {{"auto", CPU_ISA_AUTO},
                                                {"plain", CPU_ISA_PLAIN},
                                                {"avx2", CPU_ISA_AVX2},
                                                {"avx512", CPU_ISA_AVX512},
                                                {"avx512-bf16", CPU_ISA_AVX512_BF16},
                                                {"amx", CPU_ISA_AMX},
                                                {NULL, 0}};

static const struct option_choice DEVICE_FAULTS[] = {{"none", BACKEND_FAULT_NONE},
                                                     {"trap", BACKEND_FAULT_TRAP},
                                                     {"hang", BACKEND_FAULT_HANG},
                                                     {"nan", BACKEND_FAULT_NAN},
                                                     {"negative-nan", BACKEND_FAULT_NEGATIVE_NAN},
                                                     {"library", BACKEND_FAULT_LIBRARY},
                                                     {"open", BACKEND_FAULT_OPEN},
                                                     {NULL, 0}};

static const struct option_choice LOG_LEVELS[] = {{"error", LOG_LEVEL_ERROR},
                                                  {"warn", LOG_LEVEL_WARN},
                                                  {"info", LOG_LEVEL_INFO},
                                                  {"debug", LOG_LEVEL_DEBUG},
                                                  {NULL, 0}};

#define FIELD(name) offsetof(struct worker_config, name)

/* clang-format off */
static const struct option OPTIONS[] = {
    {"run-dir", OPTION_TEXT, FIELD(run_dir), NULL, 0, 0, NULL,
     "Directory of the coordinator's sockets; empty: $XDG_RUNTIME_DIR/tandem, else /run/tandem"},
    {"model", OPTION_TEXT, FIELD(model), NULL, 0, 0, NULL,
     "GGUF file or Hugging Face directory of the model, the same as the coordinator's"},
    {"backend", OPTION_CHOICE, FIELD(backend), "auto", 0, 0, BACKENDS,
     "What computes; auto: CUDA for a bf16 pool where a device is found, else the CPU"},
    {"cpu-isa", OPTION_CHOICE, FIELD(cpu_isa), "auto", 0, 0, CPU_ISAS,
     "Instruction set of the CPU backend; every one gives the same bits"},
    {"threads", OPTION_COUNT, FIELD(threads), "0", 0, 256, NULL,
     "Threads of the CPU backend; 0: one per physical core, and no more than a quota allows"},
    {"pin-threads", OPTION_FLAG, FIELD(pin_threads), "no", 0, 0, NULL,
     "Keeps each thread of the CPU backend on a core of its own; for machines that do nothing else"},
    {"kv-pool-bytes", OPTION_BYTES, FIELD(kv_pool_bytes), "2G", 4 * KIB, 1024 * GIB, NULL,
     "Memory of the KV pool; at least the coordinator's"},
    {"kv-type", OPTION_CHOICE, FIELD(kv_type), "f16", 0, 0, KV_TYPES,
     "Number format of the KV pool; the same as the coordinator's"},
    {"block-tokens", OPTION_COUNT, FIELD(block_tokens), "16", 8, LIMIT_BLOCK_TOKENS_MAX, NULL,
     "Positions of one KV block; a multiple of 8, the same as the coordinator's"},
    {"step-tokens", OPTION_COUNT, FIELD(step_tokens), "512", 1, LIMIT_STEP_TOKENS, NULL,
     "Largest token budget of one step; at least the coordinator's"},
    {"slots", OPTION_COUNT, FIELD(slots), "64", 1, LIMIT_SLOTS, NULL,
     "Requests that can run at the same time; at least the coordinator's"},
    {"context", OPTION_COUNT, FIELD(context), "0", 0, LIMIT_CONTEXT_TOKENS, NULL,
     "Positions of one request; at least the coordinator's; 0: the model's, at most 8192"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), "info", 0, 0, LOG_LEVELS,
     "What is logged"},
    {"debug-logits-hash", OPTION_FLAG, FIELD(debug_logits_hash), "no", 0, 0, NULL,
     "Adds a hash of the logits to each result, to prove that bits are equal"},
    {"debug-device-fault", OPTION_CHOICE, FIELD(debug_device_fault), "none", 0, 0, DEVICE_FAULTS,
     "Plants a fault in the CUDA device, to show what comes of it"},
    {"debug-fault-step", OPTION_COUNT, FIELD(debug_fault_step), "1", 1, UINT32_MAX, NULL,
     "Step of that fault; 1 is the first"},
};
/* clang-format on */

const struct option_program worker_options = {
    .name = "tandem-worker",
    .summary = "holds the weights and the KV pool and executes the coordinator's plans",
    .options = OPTIONS,
    .count = sizeof OPTIONS / sizeof OPTIONS[0],
};

enum status worker_config_check(const struct worker_config *config, struct text *why)
{
    if (config->model[0] == '\0') {
        text_set(why,
                 "--model is missing; give the path of a GGUF file or of a Hugging Face directory");
        return STATUS_INVALID;
    }
    if (config->block_tokens % KV_BLOCK_TOKENS_MULTIPLE != 0) {
        text_set(why, "--block-tokens: %" PRIu64 " is no multiple of %d; %d is usual",
                 config->block_tokens, KV_BLOCK_TOKENS_MULTIPLE, KV_BLOCK_TOKENS_DEFAULT);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}
