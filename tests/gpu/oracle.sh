#!/usr/bin/env bash
# Whole models on the device against transformers: all logits of 32 prompts of 1 to 2,048 tokens, teacher-forced, one
# line of verdict for each shape (tests/golden/huggingface_oracle.py). Needs a device, torch and transformers.
# usage: tests/gpu/oracle.sh BIN [SHAPE...]   BIN: folder of our programs
# TANDEM_WORK: where the models are made and kept (4 GB); else a folder that is removed.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '4p' "$0" >&2; exit 64; }
bin=$1
shift
shapes=("$@")
[ ${#shapes[@]} -gt 0 ] || shapes=(llama-1b llama-1b-2 smollm2-135m head-128 small-llama3)
work=${TANDEM_WORK:-}
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
oracle=(python3 -B tests/golden/huggingface_oracle.py)
"${oracle[@]}" make "$work" "${shapes[@]}"
"${oracle[@]}" compare "${shapes[@]/#/$work/}" --dump-logits "$bin/dump_logits" --backend cuda --device cuda
