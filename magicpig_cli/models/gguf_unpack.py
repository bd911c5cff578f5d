"""A GGUF file as a folder of safetensors that transformers loads in a second: in bfloat16, or packed.

Done once per file and kept in the cache, since transformers parses a GGUF anew at every start (25 s
for the small embedded model). Weights go through memory one shard at a time. For a GPU matrices stay in
the file's blocks (`gguf_packed`), since it is for their size that people take such files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from magicpig_cli.errors import DamagedFile
from magicpig_cli.models.bits import GGUF_BLOCKS, GGUF_FORMATS, GGUF_METHOD
from magicpig_cli.models.gguf_config import transformers_config
from magicpig_cli.models.gguf_file import GgufFile, GgufTensor, read_gguf
from magicpig_cli.models.gguf_tokenizer import save_tokenizer

Progress = Callable[[str, int, int | None], None]

# Written at once and held in memory meanwhile.
_SHARD_BYTES = 2_000_000_000
# Unpacked at once: float32 in half a megabyte.
_PIECE_NUMBERS = 1 << 17
_BY_BLOCKS = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16"}
_ROPE_FACTORS = "rope_freqs.weight"
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


# Chooses the tensors that stay in their blocks, by the name of their format; None for those that do not.
Packing = Callable[[GgufTensor], str | None]


def no_packing(tensor: GgufTensor) -> None:
    """Everything in bfloat16."""


def layer_packing(tensor: GgufTensor) -> str | None:
    """Matrices of layers, and an output head of its own, in formats that can be widened on a GPU."""
    from gguf.constants import GGMLQuantizationType

    kind = GGMLQuantizationType(tensor.type_number).name
    is_matrix = tensor.name.startswith("blk.") or tensor.name == "output.weight"
    return kind if is_matrix and len(tensor.shape) == 2 and kind in GGUF_BLOCKS else None


def folder_bytes(file: GgufFile, packing: Packing) -> int:
    """Size of the weights as they are written."""
    return sum(_kept_bytes(tensor, packing) for tensor in file.tensors)


def _kept_bytes(tensor: GgufTensor, packing: Packing) -> int:
    return 2 * int(np.prod(tensor.shape)) if packing(tensor) is None else tensor.n_bytes


def unpack_gguf(path: Path, folder: Path, progress: Progress, packing: Packing = no_packing) -> None:
    """Write config, tokenizer and weights of a GGUF file into an empty folder.

    Parameters
    ----------
    path : Path
    folder : Path
        Exists and is empty; its files are complete when this returns.
    progress : callable
        Gets ("unpacking", bytes done, bytes in all).
    packing : Packing
        Which tensors stay as they are.

    Raises
    ------
    DamagedFile, ModelUnavailable
        If the file cannot be read, or not without being read wrongly.
    """
    try:
        _unpack(read_gguf(path), folder, progress, packing)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DamagedFile(
            f"{path} contradicts itself ({type(error).__name__}: {str(error)[:100]}); "
            "the file is altered or was converted wrongly: fetch it again"
        ) from error


def _unpack(file: GgufFile, folder: Path, progress: Progress, packing: Packing) -> None:
    by_name = {tensor.name: tensor for tensor in file.tensors}
    for required in ("token_embd.weight", "output_norm.weight"):
        if required not in by_name:
            raise DamagedFile(
                f"{file.path} has no tensor {required}; it is no language model, or is incomplete"
            )
    data = np.asarray(np.memmap(file.path, np.uint8, "r")).view(np.ndarray)
    factors = values(data, by_name[_ROPE_FACTORS]) if _ROPE_FACTORS in by_name else None
    progress("unpacking", 0, folder_bytes(file, packing))
    config, generation = transformers_config(file, factors)
    kept = {tensor.name: packing(tensor) for tensor in file.tensors}
    formats = {
        _transformers_name(file, name).removesuffix(".weight"): kind for name, kind in kept.items() if kind
    }
    if formats:
        config["quantization_config"] = {"quant_method": GGUF_METHOD, GGUF_FORMATS: formats}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation)
    save_tokenizer(file, folder, config["max_position_embeddings"])
    _save_weights(file, data, config, folder, progress, packing)


def values(data: npt.NDArray[np.uint8], tensor: GgufTensor) -> npt.NDArray[np.float32]:
    """The tensor's numbers, float32, in torch's shape."""
    out = np.empty(tensor.shape, np.float32)
    flat = out.reshape(-1)
    for start, numbers in _pieces(data, tensor):
        flat[start : start + numbers.size] = numbers
    return out


def _pieces(data: npt.NDArray[np.uint8], tensor: GgufTensor) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """The numbers in order, in pieces small enough to stay in the cache: (position, float32 numbers)."""
    from gguf import quants
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(tensor.type_number)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    raw = data[tensor.start : tensor.start + tensor.n_bytes].reshape(-1, block_bytes)
    step = max(1, _PIECE_NUMBERS // block)
    # The package's own entry point goes through groups of 16 rows, five times slower for small rows.
    by_blocks = getattr(quants, kind.name).dequantize_blocks if kind.name in _BY_BLOCKS else None
    for at in range(0, len(raw), step):
        piece = raw[at : at + step]
        try:
            numbers = by_blocks(piece) if by_blocks else quants.dequantize(piece, kind)
        except NotImplementedError:
            raise DamagedFile(
                f"tensor {tensor.name} is kept in the number format {kind.name}, which cannot be unpacked; "
                "take the model in another quantisation, such as Q4_K_M or Q8_0"
            ) from None
        yield at * block, numbers.reshape(-1).astype(np.float32, copy=False)


def _save_weights(
    file: GgufFile,
    data: npt.NDArray[np.uint8],
    config: dict[str, Any],
    folder: Path,
    progress: Progress,
    packing: Packing,
) -> None:
    from safetensors.torch import save_file

    total = folder_bytes(file, packing)
    names: dict[str, str] = {}
    done = 0
    shards = list(_shards(file, packing))
    for number, tensors in enumerate(shards, 1):
        shard_name = (
            "model.safetensors"
            if len(shards) == 1
            else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        shard = {}
        for tensor in tensors:
            name = _transformers_name(file, tensor.name)
            make = _weight if packing(tensor) is None else _packed_weight
            shard[name] = make(file, data, tensor, config)
            names[name] = shard_name
            done += shard[name].nbytes
            progress("unpacking", done, total)
        save_file(shard, folder / shard_name, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {"metadata": {"total_size": done}, "weight_map": names}
        _write_json(folder / "model.safetensors.index.json", index)


def _shards(file: GgufFile, packing: Packing) -> Iterator[list[GgufTensor]]:
    shard: list[GgufTensor] = []
    size = 0
    for tensor in file.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        n_bytes = _kept_bytes(tensor, packing)
        if shard and size + n_bytes > _SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += n_bytes
    yield shard


def _weight(file: GgufFile, data: npt.NDArray[np.uint8], tensor: GgufTensor, config: dict[str, Any]) -> Any:
    import torch

    bits = np.empty(tensor.shape, np.uint16)
    flat = bits.reshape(-1)
    for start, piece in _pieces(data, tensor):
        flat[start : start + piece.size] = _bfloat16_bits(file, tensor, piece)
    return torch.from_numpy(_in_order(file, tensor, bits, config)).view(torch.bfloat16)


def _packed_weight(
    file: GgufFile, data: npt.NDArray[np.uint8], tensor: GgufTensor, config: dict[str, Any]
) -> Any:
    """The tensor's blocks as they are, uint8, (n_out, bytes of a row)."""
    import torch

    for _, piece in _pieces(data, tensor):
        _require_numbers(file, tensor, piece)
    rows = data[tensor.start : tensor.start + tensor.n_bytes].reshape(tensor.shape[0], -1)
    return torch.from_numpy(_in_order(file, tensor, rows, config).copy())


def _in_order(
    file: GgufFile, tensor: GgufTensor, rows: npt.NDArray[Any], config: dict[str, Any]
) -> npt.NDArray[Any]:
    """Rows of a weight in the order that transformers has them in."""
    part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
    if file.architecture != "llama" or part not in ("attn_q", "attn_k"):
        return rows
    heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
    # llama.cpp interleaves the two halves that rotate together; transformers keeps them apart.
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _bfloat16_bits(
    file: GgufFile, tensor: GgufTensor, numbers: npt.NDArray[np.float32]
) -> npt.NDArray[np.uint32]:
    """The upper half of each float32, rounded to the nearest, ties to even.

    In numpy, as torch would start its threads for pieces of this size: ten times slower on busy cores.
    """
    _require_numbers(file, tensor, numbers)
    bits = numbers.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = (
        bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    ) >> np.uint32(16)
    return rounded


def _require_numbers(file: GgufFile, tensor: GgufTensor, numbers: npt.NDArray[np.float32]) -> None:
    if not np.isfinite(numbers).all():
        raise DamagedFile(
            f"{file.path} holds numbers that are none (NaN, infinity) in {tensor.name}; fetch it again"
        )


def _transformers_name(file: GgufFile, name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    block = _BLOCK.fullmatch(name)
    if block is None or block[2] not in _INNER:
        raise DamagedFile(
            f"{file.path} has a tensor {name}, which has no place in a model of architecture "
            f"{file.architecture}; take the model as a folder of safetensors instead"
        )
    return f"model.layers.{block[1]}.{_INNER[block[2]]}.{block[3]}"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}, indent=2), encoding="utf-8")
