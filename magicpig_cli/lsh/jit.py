"""How the heart is compiled: numba, cached on disk where that is possible, plain Python when asked.

Holds the few machine operations that numpy has no word for (bit casts, prefetches, counting
trailing zeros). Each has a plain twin, so that NUMBA_DISABLE_JIT=1 runs the same kernels.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums of floats may be reordered (that is what makes them vectors) and contracted, but infinities
# stay meaningful: an empty part has a log-sum-exp of -inf.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

# numba's default thread layer aborts the process when two Python threads enter parallel code at once.
KERNEL_LOCK = threading.RLock()


class _KernelCache(FunctionCache):
    """numba's cache of a function, which a full disk does not stop: the code is in memory already."""

    is_kept = True

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            self.is_kept = False


def jit(parallel: bool = False, inline: bool = False, counted: bool = True) -> Callable[[Function], Function]:
    """Compile a kernel; the machine code is kept beside the package or in numba's cache folder.

    A read-only installation without a home has no place for it, nor has a full disk: then it is compiled in
    memory.

    Parameters
    ----------
    parallel, inline : bool
        As numba has them.
    counted : bool
        False leaves out reference counting, which costs an atomic operation per view of an array: for
        small functions that are called for every tile of rows and allocate nothing.
    """

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {
            "nogil": True,
            "fastmath": _FASTMATH,
            "error_model": "numpy",
            "boundscheck": False,
            "parallel": parallel,
        }
        if inline:
            options["forceinline"] = True
        if not counted:
            options["_nrt"] = False
        kernel = numba.njit(**options)(function)
        if isinstance(kernel, Dispatcher):  # and not the function itself, where nothing is compiled
            with suppress(RuntimeError, OSError):  # "cannot cache function: no locator available"
                kernel._cache = _KernelCache(function)  # type: ignore[attr-defined]
        return kernel

    return decorate


def kept_on_disk(kernel: Any) -> bool:
    """Whether the machine code of a function that `jit` made is there for the next start as well."""
    return bool(getattr(getattr(kernel, "_cache", None), "is_kept", False))


def _bits_to_float(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", int(bits) & 0xFFFFFFFF))[0]
    return value


def _float_to_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", float(value)))[0]
    return bits


def _no_prefetch(array: Any, index: int) -> None:
    """Plain Python has no cache to warm."""


def _trailing_zeros(word: int) -> int:
    return (int(word) & -int(word)).bit_length() - 1


def _fetch_add(array: Any, amount: int) -> int:
    before = int(array[0])
    array[0] += amount
    return before


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    fetch_add: Any = _fetch_add
    bits_to_float: Any = _bits_to_float
    float_to_bits: Any = _float_to_bits
    prefetch: Any = _no_prefetch
    trailing_zeros: Any = _trailing_zeros
else:

    @intrinsic
    def bits_to_float(typing_context: Any, bits: Any) -> Any:
        """The float32 with this uint32 bit pattern."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.FloatType())

        return types.float32(types.uint32), generate

    @intrinsic
    def float_to_bits(typing_context: Any, value: Any) -> Any:
        """The bit pattern of a float32, as int32."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.IntType(32))

        return types.int32(types.float32), generate

    @intrinsic
    def trailing_zeros(typing_context: Any, word: Any) -> Any:
        """Index of the lowest set bit of a uint64 that is not 0."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.uint64), generate

    @intrinsic
    def fetch_add(typing_context: Any, array: Any, amount: Any) -> Any:
        """Add to element 0 of an int64 array, atomically; gives what was there before."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            return builder.atomic_rmw("add", data, arguments[1], "monotonic")

        return types.int64(array, types.int64), generate

    @intrinsic
    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        """Ask for the cache line of element `index` of a C-contiguous array, flat; never faults."""
        if not isinstance(array, types.Array) or array.layout != "C":
            raise NumbaError("prefetch takes a C-contiguous array")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            pointer = builder.gep(data, [arguments[1]])
            byte_pointer = builder.bitcast(pointer, cgutils.voidptr_t)
            int32 = ir.IntType(32)
            declaration = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, int32, int32, int32]),
                "llvm.prefetch.p0",
            )
            builder.call(declaration, [byte_pointer, int32(0), int32(3), int32(1)])
            return context.get_dummy_value()

        return types.void(array, types.int64), generate


@jit(inline=True)
def from_bf16(word: Any) -> Any:
    """The float32 of a bf16 bit pattern (uint16)."""
    return bits_to_float(np.uint32(word) << np.uint32(16))
