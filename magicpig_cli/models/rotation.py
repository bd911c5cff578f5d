"""Rotary angles that depend on the length of a call, made to depend on the model alone.

A document is read in chunks and asked later: were short chunks rotated otherwise than long ones,
keys and queries of one text would not match.
"""

from __future__ import annotations

from typing import Any

import torch


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
