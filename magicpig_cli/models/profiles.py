"""What is known of a model beyond its weights: which layers stay dense, and how far its positions reach."""

from __future__ import annotations

from typing import Any

# The published choice (MagicPIG, arXiv 2410.16179, section 5): layers 0, 16, 32, 48, 64.
_DENSE_EVERY = 16


def dense_layers(n_layers: int) -> tuple[int, ...]:
    """Layers that attend exactly.

    Parameters
    ----------
    n_layers : int
        Decoder layers of the model.
    """
    return tuple(range(0, n_layers, _DENSE_EVERY))


def context_tokens(config: Any) -> int:
    """The longest prompt and answer that a model's positions serve.

    `max_position_embeddings`, except that a yarn scaling which names the length it stretches
    (Qwen2.5 and Qwen3 are published with 32,768 and a factor of 4) reaches factor times as far.

    Parameters
    ----------
    config : transformers config
        Of the text model.
    """
    declared = int(config.max_position_embeddings)
    stretched = [
        int(part["original_max_position_embeddings"] * part["factor"])
        for part in rope_sets(config).values()
        if part.get("rope_type") == "yarn"
        and part.get("original_max_position_embeddings")
        and part.get("factor")
    ]
    return max(declared, min(stretched)) if stretched else declared


def rope_sets(config: Any) -> dict[str, dict[str, Any]]:
    """The rotary parameters of a text config: of each kind of layer that has its own, or one set as "all"."""
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in rope:
        return {"all": rope}
    return {kind: part for kind, part in rope.items() if isinstance(part, dict)}
