"""NF4 weights times activations: a table of 16 values, looked up in registers where the CPU can.

Compilers turn a lookup into a load for each weight, with which products take two and a half times as long.
AVX2 has an instruction that picks eight of eight values at once; two of them and a choice serve 16.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from magicpig_cli.lsh.jit import bits_to_float, jit

# The values of a 4-bit weight, times its block's scale: quantiles of a normal distribution (QLoRA,
# arXiv 2305.14314, appendix E), and how many weights share a scale.
NF4_CODE = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
NF4_BLOCK = 64
_LANES = 8


@jit(inline=True)
def read_scale(row: np.ndarray, at: int) -> Any:
    """The float32 in four bytes of a row, lowest first."""
    bits = np.uint32(0)
    for i in range(4):
        bits |= np.uint32(np.uint8(row[at + i])) << np.uint32(8 * i)
    return bits_to_float(bits)


@jit(inline=True)
def _dot_by_loads(row: np.ndarray, x: np.ndarray) -> Any:
    total = np.float32(0.0)
    half = NF4_BLOCK // 2
    for block in range(x.size // NF4_BLOCK):
        at, first = block * half, block * NF4_BLOCK
        low, high = np.float32(0.0), np.float32(0.0)
        for i in range(half):
            pair = row[at + i]
            low += NF4_CODE[pair & np.uint8(15)] * x[first + i]
            high += NF4_CODE[pair >> np.uint8(4)] * x[first + half + i]
        total += (low + high) * read_scale(row, x.size // 2 + 4 * block)
    return total


@intrinsic
def _dot_in_registers(typing_context: Any, row: Any, x: Any) -> Any:
    """The same with AVX2: eight weights at a time, and one sum over lanes per row."""
    if not all(isinstance(part, types.Array) and part.layout == "C" for part in (row, x)):
        raise NumbaError("a row and activations lie without gaps")

    byte, word, single = ir.IntType(8), ir.IntType(32), ir.FloatType()
    size = ir.IntType(64)
    words, floats = ir.VectorType(word, _LANES), ir.VectorType(single, _LANES)

    def lanes(value: int) -> Any:
        return ir.Constant(words, [value] * _LANES)

    def load(builder: Any, pointer: Any, kind: Any) -> Any:
        return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, activations = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        permute = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(floats, [floats, words]), "llvm.x86.avx2.permps"
        )
        add_up = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(single, [single, floats]), "llvm.vector.reduce.fadd.v8f32"
        )
        tables = [
            ir.Constant(floats, [float(value) for value in NF4_CODE[at : at + _LANES]]) for at in (0, _LANES)
        ]

        def values(codes: Any) -> Any:
            """Of codes in the low four bits of each lane; the fourth, put in the sign's place, chooses."""
            low, high = (builder.call(permute, [table, codes]) for table in tables)
            is_high = builder.icmp_signed("<", builder.shl(codes, lanes(28)), lanes(0))
            return builder.select(is_high, high, low)

        n = builder.extract_value(activations.shape, 0)
        nothing = ir.Constant(floats, [0.0] * _LANES)
        total = cgutils.alloca_once_value(builder, nothing)
        with cgutils.for_range(builder, builder.udiv(n, size(NF4_BLOCK))) as loop:
            codes_at = builder.gep(rows.data, [builder.mul(loop.index, size(NF4_BLOCK // 2))])
            x_at = builder.gep(activations.data, [builder.mul(loop.index, size(NF4_BLOCK))])
            sums = [nothing, nothing]
            for at in range(0, NF4_BLOCK // 2, _LANES):
                pairs = load(builder, builder.gep(codes_at, [size(at)]), ir.VectorType(byte, _LANES))
                pairs = builder.zext(pairs, words)
                for half, codes in enumerate((pairs, builder.lshr(pairs, lanes(4)))):
                    place = builder.gep(x_at, [size(half * NF4_BLOCK // 2 + at)])
                    product = builder.fmul(values(codes), load(builder, place, floats), flags=("contract",))
                    sums[half] = builder.fadd(sums[half], product, flags=("contract",))
            scale_at = builder.add(builder.lshr(n, size(1)), builder.shl(loop.index, size(2)))
            scale = load(builder, builder.gep(rows.data, [scale_at]), single)
            spread = builder.insert_element(ir.Constant(floats, ir.Undefined), scale, word(0))
            spread = builder.shuffle_vector(spread, spread, ir.Constant(words, [0] * _LANES))
            both = builder.fadd(*sums)
            product = builder.fmul(both, spread, flags=("contract",))
            builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        return builder.call(add_up, [single(0.0), builder.load(total)], fastmath=("reassoc",))

    return types.float32(row, x), generate


@jit(inline=True)
def _dot_by_registers(row: np.ndarray, x: np.ndarray) -> Any:
    return _dot_in_registers(row, x)  # type: ignore[call-arg]


def _compiles_avx2() -> bool:
    """Whether numba may use it: the CPU has it, and no variable of the environment says otherwise."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return False
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+avx2" in features.split(",")


# Rows of indices and scales, as `gemv.dot` has them for uint8, times activations.
dot_nf4 = _dot_by_registers if _compiles_avx2() else _dot_by_loads
