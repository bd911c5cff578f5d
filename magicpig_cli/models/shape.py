"""How big a model is, told from its config and the headers of its files, before any weight is read.

`plan` turns a shape and a length into bytes. Models of the catalogue that are not on this disk
have their shapes here, so that `doctor` can tell what would fit before a download.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from magicpig_cli.errors import DamagedFile
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.models.bits import GGUF_BLOCKS, packed_formats
from magicpig_cli.models.catalog import CATALOG, EMBEDDED, CatalogEntry
from magicpig_cli.models.profiles import context_tokens, rope_sets

# Of a model that is not here: what its tokenizer.json takes, as those of this size do.
_TOKENIZER_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's sizes.

    Attributes
    ----------
    id : str
    context_tokens : int
    layer : LayerShape
    windows : tuple of int or None
        Per layer: keys that it sees, None where it sees all.
    hidden, intermediate, vocabulary : int
        Widths. `intermediate` is that of all experts that serve one token.
    parameters : int
        Numbers in all.
    layer_parameters : int
        Numbers of the largest layer's plain matrices.
    expert_parameters : int
        Numbers in tensors of experts, which a CPU keeps in float32.
    tokenizer_bytes : int
        Size of tokenizer.json.
    linear_parameters : int
        Numbers in the layers' plain matrices, which `--quantize` stores in fewer bits; 0 where it cannot.
    packed_parameters, packed_bytes : int
        Of matrices that stay in the blocks of a .gguf file on a GPU: numbers and bytes.
    rotations : int
        Sets of rotary angles that prefill keeps per token.
    rope : str or None
        How rotary positions are scaled: "default" for not at all; None where there are none.
    """

    id: str
    context_tokens: int
    layer: LayerShape
    windows: tuple[int | None, ...]
    hidden: int
    intermediate: int
    vocabulary: int
    parameters: int
    layer_parameters: int
    expert_parameters: int
    tokenizer_bytes: int
    linear_parameters: int
    packed_parameters: int = 0
    packed_bytes: int = 0
    rotations: int = 1
    rope: str | None = "default"

    @property
    def n_layers(self) -> int:
        return len(self.windows)


# Layers, query heads, KV heads, head_dim, hidden, intermediate, vocabulary, tied head, norms of q and k:
# from the models' published config.json, as are those that scale their positions.
# tests/models/test_plan.py checks the sizes against the parameter counts.
_PUBLISHED: dict[str, tuple[int, int, int, int, int, int, int, bool, bool]] = {
    EMBEDDED: (30, 9, 3, 64, 576, 1536, 49_152, True, False),
    "llama-3.2-1b": (16, 32, 8, 64, 2048, 8192, 128_256, True, False),
    "llama-3.2-3b": (28, 24, 8, 128, 3072, 8192, 128_256, True, False),
    "qwen3-4b": (36, 32, 8, 128, 2560, 9728, 151_936, True, True),
    "llama-3.1-8b": (32, 32, 8, 128, 4096, 14_336, 128_256, False, False),
}
_PUBLISHED_ROPE = {"llama-3.2-1b": "llama3", "llama-3.2-3b": "llama3", "llama-3.1-8b": "llama3"}


def shape_of_entry(entry: CatalogEntry) -> ModelShape:
    """The shape of a catalogued model, on this disk or not."""
    n_layers, q, kv, dim, hidden, inter, vocabulary, tied, normed = _PUBLISHED[entry.name]
    matrices = 2 * hidden * (q + kv) * dim + 3 * hidden * inter
    norms = 2 * hidden + (2 * dim if normed else 0)
    parameters = n_layers * (matrices + norms) + hidden + vocabulary * hidden * (1 if tied else 2)
    return ModelShape(
        id=entry.name,
        context_tokens=entry.context_tokens,
        layer=LayerShape(q, kv, dim),
        windows=(None,) * n_layers,
        hidden=hidden,
        intermediate=inter,
        vocabulary=vocabulary,
        parameters=parameters,
        layer_parameters=matrices,
        expert_parameters=0,
        tokenizer_bytes=_TOKENIZER_BYTES,
        linear_parameters=n_layers * matrices,
        rope=_PUBLISHED_ROPE.get(entry.name, "default"),
    )


def catalog_shapes() -> list[ModelShape]:
    """All of them, smallest first."""
    return sorted((shape_of_entry(entry) for entry in CATALOG), key=lambda shape: shape.parameters)


def shape_of_folder(folder: Path, model_id: str, config: Any) -> ModelShape:
    """The shape of a folder of safetensors.

    Parameters
    ----------
    folder : Path
    model_id : str
    config : transformers config
        Of that folder, checked by `architectures.check_architecture`.
    """
    tokenizer = folder / "tokenizer.json"
    tokenizer_bytes = tokenizer.stat().st_size if tokenizer.is_file() else _TOKENIZER_BYTES
    stored, formats = tensor_shapes(folder), packed_formats(config)
    if not formats:
        return shape_of_config(config, model_id, stored, tokenizer_bytes)
    tensors = dict(stored)
    for name, kind in formats.items():
        block, block_bytes = GGUF_BLOCKS[kind]
        n_out, n_bytes = stored.get(f"{name}.weight", (0, 0))
        tensors[f"{name}.weight"] = (n_out, n_bytes // block_bytes * block)
    packed = [f"{name}.weight" for name in formats]
    return replace(
        shape_of_config(config, model_id, tensors, tokenizer_bytes),
        linear_parameters=0,
        packed_parameters=sum(prod(tensors[name]) for name in packed),
        packed_bytes=sum(prod(stored.get(name, (0,))) for name in packed),
    )


def shape_of_config(
    config: Any, model_id: str, tensors: dict[str, tuple[int, ...]], tokenizer_bytes: int
) -> ModelShape:
    """The shape that a config and the tensors' shapes describe; tensors by transformers' names."""
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    chosen = getattr(text, "num_experts_per_tok", None)
    if chosen:
        intermediate = (getattr(text, "moe_intermediate_size", None) or intermediate) * chosen
    sizes = {name: prod(shape) for name, shape in tensors.items()}
    layers: dict[str, int] = {}
    for name, size in sizes.items():
        if ".layers." in name and ".experts." not in name and len(tensors[name]) == 2:
            number = name.partition(".layers.")[2].partition(".")[0]
            layers[number] = layers.get(number, 0) + size
    sets = rope_sets(text)
    return ModelShape(
        id=model_id,
        context_tokens=context_tokens(text),
        layer=LayerShape(heads, getattr(text, "num_key_value_heads", None) or heads, head_dim),
        windows=layer_windows(text),
        hidden=text.hidden_size,
        intermediate=intermediate,
        vocabulary=text.vocab_size,
        parameters=sum(sizes.values()),
        layer_parameters=max(layers.values(), default=0),
        expert_parameters=sum(size for name, size in sizes.items() if ".experts." in name),
        tokenizer_bytes=tokenizer_bytes,
        linear_parameters=sum(layers.values()),
        rotations=max(1, len(sets)),
        rope=_rope_scaling(text, sets),
    )


def _rope_scaling(text: Any, sets: dict[str, dict[str, Any]]) -> str | None:
    """See `ModelShape.rope`; of several sets the first that scales."""
    kinds = [str(part.get("rope_type", "default")) for part in sets.values()]
    return next((kind for kind in kinds if kind != "default"), "default") if kinds else None


def layer_windows(text: Any) -> tuple[int | None, ...]:
    """Per layer of a text config: the keys of its sliding window, None where it sees all."""
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * text.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name of all tensors in a folder's safetensors files, from their headers.

    Of experts in mxfp4 (gpt-oss), whose file has blocks and scales, the shape that they are unpacked to.

    Raises
    ------
    DamagedFile
        If a header cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            files = [folder / name for name in names]
        else:
            files = sorted(folder.glob("*.safetensors"))
        shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            with path.open("rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            shapes |= {
                name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"
            }
        shapes = _unpacked(shapes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DamagedFile(
            f"the weights in {folder} have a header that cannot be read; fetch it again"
        ) from error
    return shapes


def _unpacked(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Blocks of mxfp4 beside scales, (experts, n_out, n_in / 32, 16 bytes), as (experts, n_in, n_out)."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        stem, _, part = name.rpartition("_")
        if part == "blocks" and f"{stem}_scales" in shapes and len(shape) == 4:
            experts, n_out, blocks, n_bytes = shape
            found[stem] = (experts, blocks * n_bytes * 2, n_out)
        elif not (part == "scales" and f"{stem}_blocks" in shapes):
            found[name] = shape
    return found
