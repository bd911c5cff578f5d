"""Weights times a few rows of activations, in numba: what decoding on a CPU spends its time on.

A decode step reads every weight once, so its speed is the memory's. Weights stay in 16 bits
and are widened in registers; products and sums are float32, as torch computes float32 linears.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from magicpig_cli.lsh.jit import KERNEL_LOCK, bits_to_float, jit

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
def dot(weights: np.ndarray, x: np.ndarray) -> Any:
    """Inner product of one stored row of weights and float32 activations."""
    total = np.float32(0.0)
    for i in range(x.size):
        total += widen(weights[i]) * x[i]
    return total


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
        (n_out, n_in), C-contiguous, in one of the formats of `widen`.
    bias : numpy.ndarray
        (n_out,) or (0,) for none, float32.
    out : numpy.ndarray
        (rows, n_out), float32, overwritten.
    """
    with KERNEL_LOCK:
        _gemv(x, weights, bias, out)
