"""Tiny models written as real files: safetensors folders and GGUF twins of the same random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

ALPHABET = sorted(
    {chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))}
    | {chr(256 + i) for i in range(68)}
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w"]
TOKENS = [*SPECIAL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "<think>"]
KINDS = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL) - 1) + [4]

# In place of a rule of splitting.
SENTENCEPIECE = "sentencepiece"

ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


def tiny_model(kind: str = "llama", rope: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A random model of two layers in bfloat16."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "rope_parameters": rope or ROPE,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **{**shape, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def save_folder(model: Any, folder: Path, tokenizer: PreTrainedTokenizerFast, shard: str = "5GB") -> Path:
    """The model as a transformers folder."""
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(
    model: Any,
    path: Path,
    architecture: str,
    quantized: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    factors: np.ndarray | None = None,
    pre: str = "default",
    extra: dict[str, Any] | None = None,
) -> Path:
    """The model as llama.cpp's converter would write it.

    Parameters
    ----------
    quantized : GGMLQuantizationType
        Of the matrices.
    factors : float32 array or None
        Becomes `rope_freqs.weight`.
    extra : dict
        Further metadata: strings, integers and floats by full key.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if pre == SENTENCEPIECE:
        _add_sentencepiece(writer)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        writer.add_token_types(KINDS)
        writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    adders = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (extra or {}).items():
        adders[type(value)](key, value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH_NAMES and _arch(architecture), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, suffix = name.rsplit(".", 1)
        values = tensor.float().numpy()
        if architecture == "llama" and (".q_proj" in name or ".k_proj" in name):
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        kind = quantized if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = values if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """A vocabulary as Llama 2 and Mistral 7B have it: control tokens, bytes, pieces with scores."""
    pieces = ["\u2581", *(chr(c) for c in range(97, 123)), "he", "ll", "hell", "hello", "\u2581hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(pieces))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(pieces))
    writer.add_unk_token_id(0)


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, its_name in gguf.MODEL_ARCH_NAMES.items() if its_name == name)
