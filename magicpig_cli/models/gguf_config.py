"""A GGUF file's metadata as a transformers config, with the rope scaling that the file declares.

transformers drops the `rope_freqs.weight` tensor, in which Llama-3.1 and 3.2 files carry their
long-context correction, without a word. Here it becomes part of the config, or the file is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from magicpig_cli.errors import ModelUnavailable
from magicpig_cli.models.gguf_file import GgufFile

# GGUF architecture -> transformers class. Mistral files call themselves llama.
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Meta's constants of `rope_type: llama3` (Llama 3.1 and 3.2); the factor is the largest of the file.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL = 1.0, 4.0, 8192

# Names of tokens that end a turn or a text in the model families of today.
_END_NAMES = frozenset(
    {
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>", "<|end|>",
        "<end_of_turn>", "<eos>", "<|end_of_turn|>", "<|return|>", "<EOT>", "<|EOT|>", "<|eot|>",
    }
)  # fmt: skip
_CONTROL_TOKEN = 3


def transformers_config(
    file: GgufFile, rope_factors: npt.NDArray[np.float32] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json.

    Parameters
    ----------
    file : GgufFile
    rope_factors : float32 array (head_dim / 2,) or None
        The tensor `rope_freqs.weight`: every frequency is divided by its factor.

    Raises
    ------
    ModelUnavailable
        If the architecture or its rope scaling is not supported.
    """
    architecture = file.architecture
    if architecture not in ARCHITECTURES or f"{architecture}.expert_count" in file.metadata:
        kind = f"{architecture} with experts" if architecture in ARCHITECTURES else architecture
        raise ModelUnavailable(
            f"{file.path} is a GGUF of architecture {kind}; {', '.join(ARCHITECTURES)} (and Mistral) can "
            "be read. Take the model as a folder of safetensors instead"
        )
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    key = _Keys(file)
    heads = key("attention.head_count")
    head_dim = key("attention.key_length", key("rope.dimension_count", key("embedding_length") // heads))
    sliding_window = key("attention.sliding_window", 0)
    ids = {
        f"{ours}_token_id": file.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "dtype": "bfloat16",
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": key("context_length"),
        "rope_parameters": _rope(file, key, head_dim, rope_factors),
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
        **ids,
    }
    if architecture == "llama" and sliding_window:
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": sliding_window,
        }
    generation = {**ids, "eos_token_id": end_ids(file.metadata)}
    return config, generation


def end_ids(metadata: dict[str, Any]) -> list[int]:
    """Every token that ends a turn: the declared ones first, then those known by name.

    A GGUF declares one end token; a chat model usually has two.
    """
    declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    named = [
        index
        for index, (token, kind) in enumerate(zip(metadata["tokenizer.ggml.tokens"], kinds, strict=False))
        if kind == _CONTROL_TOKEN and token in _END_NAMES
    ]
    return list(dict.fromkeys([i for i in declared if i is not None] + named))


class _Keys:
    """Metadata under the architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def __call__(self, name: str, default: Any = None) -> Any:
        value = self._file.metadata.get(f"{self._file.architecture}.{name}", default)
        if value is None:
            raise ModelUnavailable(
                f"{self._file.path} lacks {self._file.architecture}.{name}, so its shape is unknown; "
                "take the model from another source"
            )
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ModelUnavailable(
                    f"{self._file.path} has layers of different {name}, which cannot be read yet; "
                    "take the model as a folder of safetensors instead"
                )
            value = value[0]
        return value


def _rope(
    file: GgufFile, key: _Keys, head_dim: int, factors: npt.NDArray[np.float32] | None
) -> dict[str, Any]:
    theta = float(key("rope.freq_base", 10000.0))
    kind = key("rope.scaling.type", "linear" if key("rope.scale_linear", 0) else "none")
    factor = float(key("rope.scaling.factor", key("rope.scale_linear", 1.0)))
    if factors is not None and kind in ("none", "llama3") and not np.allclose(factors, 1.0):
        return {"rope_theta": theta, **_from_factors(factors, theta, head_dim, key("context_length"))}
    if factors is None and (kind == "none" or factor == 1.0):
        return {"rope_theta": theta, "rope_type": "default"}
    if factors is None and kind == "linear":
        return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
    if factors is None and kind == "yarn":
        original = int(key("rope.scaling.original_context_length", key("context_length")))
        return {
            "rope_theta": theta,
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise ModelUnavailable(
        f"{file.path} scales its positions in a way that cannot be honoured yet (rope scaling {kind!r}"
        f"{' with rope_freqs.weight' if factors is not None else ''}), and would be wrong on long texts; "
        "take the model as a folder of safetensors instead"
    )


def _from_factors(
    factors: npt.NDArray[np.float32], theta: float, head_dim: int, context: int
) -> dict[str, Any]:
    """The scaling whose frequencies are the default ones divided by `factors`."""
    scale = float(factors.max())
    if np.allclose(factors, _llama3_factors(scale, theta, head_dim), rtol=1e-3):
        return {
            "rope_type": "llama3",
            "factor": scale,
            "low_freq_factor": _LLAMA3_LOW,
            "high_freq_factor": _LLAMA3_HIGH,
            "original_max_position_embeddings": _LLAMA3_ORIGINAL,
        }
    # longrope divides by a list of factors; the same list for short and long texts, and no change of scale.
    values = [float(f) for f in factors]
    return {
        "rope_type": "longrope",
        "short_factor": values,
        "long_factor": values,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _llama3_factors(scale: float, theta: float, head_dim: int) -> npt.NDArray[np.float64]:
    """Meta's correction: none for short wavelengths, `scale` for long ones, a blend between."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    rotations = _LLAMA3_ORIGINAL / wavelength
    smooth = np.clip((rotations - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0, 1.0)
    factors: npt.NDArray[np.float64] = 1 / ((1 - smooth) / scale + smooth)
    return factors
