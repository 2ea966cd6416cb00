#!/usr/bin/env python3
"""Attention of decoding without our promise: torch's flash attention, which splits the keys by what fills the device.
Same shapes as gpu_price_bench: 32 heads, 8 kv heads of 64, 16 layers, keys and values contiguous. us a layer.

usage: attention_price.py [ROWS:CONTEXT...]
"""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYERS, HEADS, KV_HEADS, HEAD_DIM, TURNS = 16, 32, 8, 64, 5


def time_us(rows, context):
    shape = (LAYERS, rows, KV_HEADS, context, HEAD_DIM)
    keys, values = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    queries = torch.randn(rows, HEADS, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)

    def layers():
        for layer in range(LAYERS):
            torch.nn.functional.scaled_dot_product_attention(queries, keys[layer], values[layer], enable_gqa=True)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            layers()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layers()
    best = float("inf")
    for _ in range(TURNS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e3 / LAYERS)
    return best


def main():
    for case in sys.argv[1:] or ["1:128", "1:1024", "8:1024", "64:1024", "256:256"]:
        rows, context = map(int, case.split(":"))
        print(f"flash attention of torch {torch.__version__} rows {rows:3} context {context:5}: "
              f"{time_us(rows, context):.1f} us a layer", flush=True)


if __name__ == "__main__":
    main()
