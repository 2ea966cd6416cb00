/* Hyperparameters of a llama model out of the metadata of a GGUF file. */
#ifndef TANDEM_COMMON_MODEL_KEYS_H
#define TANDEM_COMMON_MODEL_KEYS_H

#include "common/gguf.h"
#include "common/model_sizes.h"
#include "common/status.h"
#include "common/text.h"

/* Everything but tied_output and metadata_hash, which follow from the tensors. STATUS_OK,
 * STATUS_BAD_FILE or STATUS_UNSUPPORTED; `why` names the key, what it holds and what was expected.
 */
MUST_USE enum status model_keys_read(const struct gguf *gguf, struct model_shape *out_shape,
                                     struct text *why);

#endif
