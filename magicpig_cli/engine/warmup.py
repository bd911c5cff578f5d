"""Compile what decoding needs before the first token, so that no step is seconds slower than the next.

The first run after an installation compiles for most of a minute; later ones read the machine
code from disk. Types decide what is compiled, not sizes, so one step on next to nothing will do.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.engine.decode import StepFunction
from magicpig_cli.engine.step import make_step
from magicpig_cli.lsh.jit import kept_on_disk
from magicpig_cli.lsh.layer import LshLayer
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.lsh.tables import sort_by_code

# Shown with --verbose only.
_LOG = logging.getLogger(__name__)


class _Nothing:
    """An attender of a session that has read nothing: every output is zero."""

    n_tokens = 0

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `hook.Attender`."""
        return torch.zeros_like(query), query.new_zeros(query.shape[:2], dtype=torch.float32)


def step_without_attention(model: Any) -> StepFunction:
    """A step whose attention gives zeros at once: all that a model does besides."""
    return make_step(model, _Nothing())  # type: ignore[arg-type]


@torch.inference_mode()
def compile_kernels(model: Any) -> None:
    """Run every kernel of a step once, on keys of no meaning and with a token of no meaning."""
    if not kept_on_disk(sort_by_code):
        _LOG.warning(
            "magicpig: the kernels are compiled in memory, anew at every start, as neither the installation "
            "nor the home can be written; NUMBA_CACHE_DIR=FOLDER keeps them there"
        )
    shape = LayerShape(n_q_heads=2, n_kv_heads=1, head_dim=8)
    rows = np.zeros((1, 32, 2, 8), np.uint16)
    layer = LshLayer(LshParams(n_bits=1, n_tables=2), shape)
    layer.build(rows, 4, 16)
    layer.insert(rows, 16, 28)  # of the same size, so that the blocks merge
    layer.attend(np.zeros((2, 8), np.float32), rows, [(0, 4)], 1.0)
    step_without_attention(model)(0)
    head = model.get_output_embeddings()  # by itself, as it gives the prompt's logits
    head(torch.zeros(1, head.weight.shape[1], dtype=head.weight.dtype, device=head.weight.device))
