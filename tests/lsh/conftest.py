"""Layers of random keys in the store's form, with queries near some of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.lsh.reference import float_to_bf16

MakeLayer = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def make_layer() -> MakeLayer:
    """A function (shape, n_tokens, seed) -> rows uint16 (kv_heads, n, 2, head_dim), query float32."""

    def make(shape: LayerShape, n_tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        # Real keys are not centred: their mean is longer than their spread.
        mean = 2.0 * random.normal(size=(shape.n_kv_heads, 1, shape.head_dim))
        keys = mean + random.normal(size=(shape.n_kv_heads, n_tokens, shape.head_dim))
        values = random.normal(size=keys.shape)
        near = np.repeat(keys[:, n_tokens // 2] - mean[:, 0], shape.group_size, axis=0)
        query = near + 1.5 * random.normal(size=(shape.n_q_heads, shape.head_dim))
        return float_to_bf16(np.stack([keys, values], axis=2)), query.astype(np.float32)

    return make
