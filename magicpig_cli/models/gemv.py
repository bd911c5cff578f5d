"""Weights times a few rows of activations, in numba: what decoding on a CPU spends its time on.

A decode step reads every weight once, so its speed is the memory's. Weights stay in 16 bits (or in
8 or 4) and are widened in registers; products and sums are float32, as torch computes float32 linears.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import NumbaError
from numba.extending import intrinsic, overload

from magicpig_cli.lsh.jit import KERNEL_LOCK, bits_to_float, jit
from magicpig_cli.models.nf4 import dot_nf4, read_scale

# Rows of activations up to which the weights are the bottleneck, so that widening them in
# registers beats widening them in memory for torch's matrix product.
MAX_ROWS = 8

# Moving a float16's exponent bits into a float32's leaves the exponent too small by 127 - 15.
_HALF_RESCALE = 2.0**112


def _widen(weight: Any) -> Any:
    if isinstance(weight, np.float32):
        return weight
    bits = int(weight) & 0xFFFF
    if isinstance(weight, np.uint16):
        return np.float32(bits_to_float(bits << 16))
    return np.float32(bits_to_float((bits & 0x8000) << 16 | (bits & 0x7FFF) << 13) * _HALF_RESCALE)


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    widen: Any = _widen
else:

    @intrinsic
    def widen(typing_context: Any, weight: Any) -> Any:
        """A stored weight as float32: uint16 holds a bfloat16, int16 a float16 (finite), float32 itself.

        The integer's type tells the format, so one kernel source serves all of them.
        """
        if weight not in (types.uint16, types.int16, types.float32):
            raise NumbaError(f"no weight is stored as {weight}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if weight == types.float32:
                return arguments[0]
            word, single = ir.IntType(32), ir.FloatType()
            bits = builder.zext(arguments[0], word)
            if weight == types.uint16:
                return builder.bitcast(builder.shl(bits, word(16)), single)
            sign = builder.shl(builder.and_(bits, word(0x8000)), word(16))
            magnitude = builder.shl(builder.and_(bits, word(0x7FFF)), word(13))
            small = builder.bitcast(builder.or_(sign, magnitude), single)
            return builder.fmul(small, single(_HALF_RESCALE))

        return types.float32(weight), generate


@jit(inline=True)
def _dot_floats(row: np.ndarray, x: np.ndarray) -> Any:
    total = np.float32(0.0)
    for i in range(x.size):
        total += widen(row[i]) * x[i]
    return total


@jit(inline=True)
def _dot_int8(row: np.ndarray, x: np.ndarray) -> Any:
    total = np.float32(0.0)
    for i in range(x.size):
        total += np.float32(row[i]) * x[i]
    return total * read_scale(row, x.size)


def dot(row: np.ndarray, x: np.ndarray) -> Any:
    """Inner product of one stored row of weights and float32 activations.

    Parameters
    ----------
    row : numpy.ndarray
        Its type tells the format. Those of `widen`: (n_in,). int8: n_in weights and the float32 that
        multiplies them, (n_in + 4,). uint8: for each `nf4.NF4_BLOCK` weights half as many bytes, whose low
        bits index `nf4.NF4_CODE` for the block's first half and whose high bits for its second, and after
        all of these a float32 scale per block, (n_in / 2 + n_in / 16,).
    x : numpy.ndarray
        (n_in,), float32; for uint8 a multiple of `nf4.NF4_BLOCK`.
    """
    return _dot_of(row.dtype)(row, x)


def _dot_of(dtype: Any) -> Any:
    return {"int8": _dot_int8, "uint8": dot_nf4}.get(str(dtype), _dot_floats)


@overload(dot, jit_options={"nogil": True, "error_model": "numpy", "forceinline": True})
def _compiled_dot(row: Any, x: Any) -> Any:
    chosen = _dot_of(row.dtype)

    def dot_of_this_type(row: Any, x: Any) -> Any:
        return chosen(row, x)

    return dot_of_this_type


@jit(parallel=True)
def _gemv(x: np.ndarray, weights: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    for row in numba.prange(weights.shape[0]):
        stored = weights[row]
        for i in range(x.shape[0]):
            total = dot(stored, x[i])
            if bias.size:
                total += bias[row]
            out[i, row] = total


def gemv(x: np.ndarray, weights: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """out = x @ weights.T + bias, reading the weights once for all rows of x.

    Parameters
    ----------
    x : numpy.ndarray
        (rows, n_in), float32, C-contiguous; meant for at most `MAX_ROWS` rows.
    weights : numpy.ndarray
        (n_out, n_in), C-contiguous, in one of the formats of `dot`.
    bias : numpy.ndarray
        (n_out,) or (0,) for none, float32.
    out : numpy.ndarray
        (rows, n_out), float32, overwritten.
    """
    with KERNEL_LOCK:
        _gemv(x, weights, bias, out)


@jit(inline=True)
def _linear(weights: np.ndarray, bias: np.ndarray, row: int, x: np.ndarray) -> Any:
    total = dot(weights[row], x)
    if bias.size:
        total += bias[row]
    return total


@jit(inline=True)
def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float, out: np.ndarray) -> None:
    square = np.float32(0.0)
    for i in range(x.size):
        square += x[i] * x[i]
    scale = np.float32(1.0) / np.sqrt(square / np.float32(x.size) + np.float32(eps))
    for i in range(x.size):
        out[i] = weight[i] * (x[i] * scale)


@jit(inline=True)
def _rotate(head: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    half = head.size // 2
    for i in range(half):
        low, high = head[i], head[half + i]
        head[i] = low * cos[i] - high * sin[i]
        head[half + i] = high * cos[half + i] + low * sin[half + i]


@jit()
def embed(table: np.ndarray, token_id: int, hidden: np.ndarray) -> None:
    """hidden = the token's row of a (vocabulary, n) table, widened."""
    row = table[token_id]
    for i in range(hidden.size):
        hidden[i] = widen(row[i])


@jit(parallel=True)
def project_qkv(
    hidden: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    normed: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    norm: np.ndarray,
    eps: float,
    q_weight: np.ndarray,
    k_weight: np.ndarray,
    v_weight: np.ndarray,
    q_bias: np.ndarray,
    k_bias: np.ndarray,
    v_bias: np.ndarray,
    q_norm: np.ndarray,
    k_norm: np.ndarray,
    head_eps: float,
) -> None:
    """First half of a Llama layer for one token: norm, then rotated query and key, and value.

    Parameters
    ----------
    hidden, normed : numpy.ndarray
        (n_hidden,), float32: the residual stream, and scratch.
    cos, sin : numpy.ndarray
        (head_dim,), float32, of the token's position.
    query, key, value : numpy.ndarray
        (heads, head_dim), float32, overwritten.
    norm, eps : numpy.ndarray, float
        The layer's first norm: weight (n_hidden,), float32.
    q_weight, k_weight, v_weight : numpy.ndarray
        (heads * head_dim, n_hidden), in a format of `dot`.
    q_bias, k_bias, v_bias : numpy.ndarray
        (heads * head_dim,) float32, or (0,) for none.
    q_norm, k_norm, head_eps : numpy.ndarray, numpy.ndarray, float
        Norms over each head (Qwen3): weights (head_dim,) float32, or (0,) for none.
    """
    _rms_norm(hidden, norm, eps, normed)
    queries, keys, values = query.reshape(-1), key.reshape(-1), value.reshape(-1)
    n_q, n_k = queries.size, keys.size
    for row in numba.prange(n_q + 2 * n_k):
        if row < n_q:
            queries[row] = _linear(q_weight, q_bias, row, normed)
        elif row < n_q + n_k:
            keys[row - n_q] = _linear(k_weight, k_bias, row - n_q, normed)
        else:
            values[row - n_q - n_k] = _linear(v_weight, v_bias, row - n_q - n_k, normed)
    # Some ten thousand operations: less than it takes to wake a second thread.
    for head in range(query.shape[0]):
        if q_norm.size:
            _rms_norm(query[head], q_norm, head_eps, query[head])
        _rotate(query[head], cos, sin)
    for head in range(key.shape[0]):
        if k_norm.size:
            _rms_norm(key[head], k_norm, head_eps, key[head])
        _rotate(key[head], cos, sin)


@jit(parallel=True)
def finish_layer(
    hidden: np.ndarray,
    attended: np.ndarray,
    normed: np.ndarray,
    gated: np.ndarray,
    o_weight: np.ndarray,
    o_bias: np.ndarray,
    norm: np.ndarray,
    eps: float,
    gate_weight: np.ndarray,
    up_weight: np.ndarray,
    down_weight: np.ndarray,
    gate_bias: np.ndarray,
    up_bias: np.ndarray,
    down_bias: np.ndarray,
) -> None:
    """Second half of a Llama layer for one token, added to the residual stream in place.

    Parameters
    ----------
    hidden, normed : numpy.ndarray
        (n_hidden,), float32: the residual stream, and scratch.
    attended : numpy.ndarray
        (n_q_heads * head_dim,), float32: what attention gave.
    gated : numpy.ndarray
        (n_intermediate,), float32, scratch.
    o_weight, gate_weight, up_weight, down_weight : numpy.ndarray
        (n_out, n_in), in a format of `dot`.
    o_bias, gate_bias, up_bias, down_bias : numpy.ndarray
        (n_out,) float32, or (0,) for none.
    norm, eps : numpy.ndarray, float
        The layer's second norm: weight (n_hidden,), float32.
    """
    for row in numba.prange(hidden.size):
        hidden[row] += _linear(o_weight, o_bias, row, attended)
    _rms_norm(hidden, norm, eps, normed)
    for row in numba.prange(gated.size):
        gate = _linear(gate_weight, gate_bias, row, normed)
        up = _linear(up_weight, up_bias, row, normed)
        gated[row] = gate / (np.float32(1.0) + np.exp(-gate)) * up
    for row in numba.prange(hidden.size):
        hidden[row] += _linear(down_weight, down_bias, row, gated)


@jit(parallel=True)
def project_logits(
    hidden: np.ndarray,
    normed: np.ndarray,
    logits: np.ndarray,
    norm: np.ndarray,
    eps: float,
    weights: np.ndarray,
    bias: np.ndarray,
) -> None:
    """logits = the head (vocabulary, n_hidden) times the normed residual stream."""
    _rms_norm(hidden, norm, eps, normed)
    for row in numba.prange(logits.size):
        logits[row] = _linear(weights, bias, row, normed)
