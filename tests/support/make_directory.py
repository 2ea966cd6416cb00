"""Writes the small models of make_model.py as Hugging Face directories with the same numbers: config.json,
generation_config.json, and safetensors in one file or in two with an index. Standard library only."""
import json
import os
import shutil
import struct

NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}
LAYER_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def name_of(tensor):
    if tensor in NAMES:
        return NAMES[tensor]
    _, layer, part, _ = tensor.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def half_split(content, rows, head_dim):
    """Rows of Q or K of a GGUF, where the two of a pair stand side by side, as halves of the head."""
    row_bytes, pairs = len(content) // rows, head_dim // 2
    order = [head + 2 * pair + half for head in range(0, rows, head_dim) for half in (0, 1) for pair in range(pairs)]
    return b"".join(content[row * row_bytes:(row + 1) * row_bytes] for row in order)


def write_safetensors(path, tensors):
    """tensors: [(name, dtype, shape, bytes)]"""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(content for _, _, _, content in tensors)


def config_of(options, vocabulary):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
            "hidden_size": options["width"], "intermediate_size": options["ffn"], "hidden_act": "silu",
            "num_hidden_layers": options["layers"], "num_attention_heads": options["heads"],
            "num_key_value_heads": options["kv_heads"], "head_dim": options["head_dim"],
            "max_position_embeddings": options["context"], "rms_norm_eps": 1e-5, "eos_token_id": 2,
            "tie_word_embeddings": not options["untied"], "torch_dtype": "bfloat16",
            "rope_theta": 10000.0, "rope_scaling": None}


def write(path, options, vocabulary, tensors):
    """tensors: (name, type, extents, bytes) as in the GGUF; matrices of a type without blocks."""
    temporary = f"{path}.{os.getpid()}"
    os.makedirs(temporary)
    converted = []
    for tensor, kind, extents, content in tensors:
        if tensor.endswith(("attn_q.weight", "attn_k.weight")):
            content = half_split(content, extents[1], options["head_dim"])
        converted.append((name_of(tensor), "F32" if kind == "NORM" else kind, list(extents)[::-1], content))
    parts = {"model.safetensors": converted}
    if options.get("shards"):
        middle = len(converted) // 2
        parts = {"model-00001-of-00002.safetensors": converted[:middle],
                 "model-00002-of-00002.safetensors": converted[middle:]}
        index = {"metadata": {}, "weight_map": {tensor[0]: file for file, part in parts.items() for tensor in part}}
        with open(os.path.join(temporary, "model.safetensors.index.json"), "w", encoding="ascii") as file:
            json.dump(index, file)
    for name, part in parts.items():
        write_safetensors(os.path.join(temporary, name), part)
    for name, value in (("config.json", config_of(options, vocabulary)),
                        ("generation_config.json", {"eos_token_id": [2, 0]}), ("tokenizer.json", {})):
        with open(os.path.join(temporary, name), "w", encoding="ascii") as file:
            json.dump(value, file, indent=2)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(temporary, path)
