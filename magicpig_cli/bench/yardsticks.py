"""What a sampled step is measured against: the bare reading of its rows, of all rows, and dense attention."""

from __future__ import annotations

import numba
import numpy as np
import torch

from magicpig_cli.lsh.jit import jit


@jit(parallel=True)
def read_rows(words, order, bounds, sums):
    """The gather floor: read given rows in a given order and sum them, nothing else.

    Parameters
    ----------
    words : array
        uint64, (n_kv_heads, capacity, words per row): the store's rows.
    order : array
        int64, flat: sampled tokens of each KV head, in the order of the step.
    bounds : array
        int64, (n_parts, 3): KV head, and where a part begins and ends in `order`.
    sums : array
        uint64, (n_parts,); overwritten, so that nothing is optimised away.
    """
    for part in numba.prange(bounds.shape[0]):
        head, begin, end = bounds[part, 0], bounds[part, 1], bounds[part, 2]
        total = np.uint64(0)
        for i in range(begin, end):
            row = words[head, order[i]]
            for word in range(row.shape[0]):
                total += row[word]
        sums[part] = total


@jit(parallel=True)
def read_everything(words, n_parts, sums):
    """Read rows from the first to the last and sum them: one sequential pass over keys and values.

    Parameters
    ----------
    words : array
        uint64, flat.
    n_parts : int
    sums : array
        uint64, (n_parts,); overwritten.
    """
    n = words.shape[0]
    for part in numba.prange(n_parts):
        total = np.uint64(0)
        for i in range(n * part // n_parts, n * (part + 1) // n_parts):
            total += words[i]
        sums[part] = total


# How torch can attend: with its fused function or with two products, on keys and values of which type.
DENSE_FORMS = ("sdpa-bfloat16", "sdpa-float32", "matmul-float32")


class DenseContender:
    """Dense attention in torch on keys and values laid out as torch likes them best.

    Query heads of a KV group are rows of one query, so a key is read once per KV head. Which of
    torch's forms is fastest depends on the CPU: bf16 is slow without its instructions.

    Parameters
    ----------
    rows : numpy.ndarray
        uint16, (n_kv_heads, n, 2, head_dim).
    scale : float
    form : str
        One of DENSE_FORMS.
    """

    def __init__(self, rows: np.ndarray, scale: float, form: str) -> None:
        self.scale, self.form = scale, form
        self._dtype = torch.bfloat16 if form.endswith("bfloat16") else torch.float32
        tensor = torch.from_numpy(rows).view(torch.bfloat16)
        self._keys, self._values = (
            tensor[None, :, :, which].to(self._dtype).contiguous() for which in (0, 1)
        )

    def __call__(self, query: np.ndarray) -> np.ndarray:
        """Attention output, float32, (n_q_heads, head_dim), of query (n_q_heads, head_dim)."""
        keys, values = self._keys, self._values
        rows = torch.from_numpy(query).to(self._dtype).view(1, keys.shape[1], -1, keys.shape[3])
        if self.form.startswith("sdpa"):
            out = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, scale=self.scale)
        else:
            out = torch.softmax(rows @ keys.transpose(2, 3) * self.scale, dim=-1) @ values
        return out.float().reshape(query.shape).numpy()
