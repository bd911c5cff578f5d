"""Rotary angles: made to depend on the model alone, and stretched beyond its context on request.

A document is read in chunks and asked later: were short chunks rotated otherwise than long ones,
keys and queries of one text would not match.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from magicpig_cli.errors import UsageError
from magicpig_cli.models.profiles import rope_sets
from magicpig_cli.models.shape import ModelShape


def stretched(shape: ModelShape, factor: float | None) -> ModelShape:
    """The shape of a model whose positions are stretched by yarn (arXiv 2309.00071).

    Parameters
    ----------
    shape : ModelShape
    factor : float or None
        How many times as far they shall reach, above 1; None leaves them as they are.

    Raises
    ------
    UsageError
        If the model has no rotary positions, or declares a scaling of its own.
    """
    if factor is None:
        return shape
    if shape.rope is None:
        raise UsageError(
            f"{shape.id} has no rotary positions that --rope could stretch; leave it out, or choose another "
            "model"
        )
    if shape.rope != "default":
        raise UsageError(
            f"{shape.id} scales its rotary positions already ({shape.rope}) and reads "
            f"{shape.context_tokens:,} tokens; leave out --rope, or choose a model with a longer context"
        )
    return replace(shape, context_tokens=int(shape.context_tokens * factor), rope="yarn")


def stretch_notice(model_id: str, context_tokens: int, factor: float) -> str:
    """What people should know of a model that reads `context_tokens` by being stretched."""
    trained = round(context_tokens / factor)
    return (
        f"the positions of {model_id} are stretched from {trained:,} tokens, for which it was trained, to "
        f"{context_tokens:,}: answers may be worse, also about short texts"
    )


def stretch_rotation(config: Any, factor: float) -> None:
    """Let a config that `stretched` accepts ask transformers for yarn, in place.

    Layers that see only a sliding window are left as they are where they have angles of their own.

    Parameters
    ----------
    config : transformers config
    factor : float
    """
    text = config.get_text_config(decoder=True)
    for kind, angles in rope_sets(text).items():
        if kind != "sliding_attention":
            angles |= {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": int(text.max_position_embeddings),
            }


def settle_rotation(model: Any) -> None:
    """Let `longrope` models (Phi-3) use their long factors for every text, in place.

    transformers takes the short factors while a call's positions lie within the length that the
    model was first trained for. Here a model that reads further always takes the long ones.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        if getattr(module, "rope_type", None) != "longrope":
            continue
        config = module.config
        original = config.rope_parameters["original_max_position_embeddings"]
        if config.max_position_embeddings > original:
            device = module.inv_freq.device
            long, _ = ROPE_INIT_FUNCTIONS["longrope"](config, device, seq_len=original + 1)
            with torch.no_grad():
                module.original_inv_freq.copy_(long)
                module.inv_freq.copy_(long)
