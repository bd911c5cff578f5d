"""Weights on a CPU: kept in 16 bits, computed with in float32.

A CPU without bf16 instructions multiplies float32 matrices several times faster than bf16
ones, but reads 16-bit weights twice as fast as float32 ones. So reading a document widens one
layer's weights at a time (`upcast`) and decoding widens them in registers (`gemv`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from magicpig_cli.models.gemv import MAX_ROWS, gemv

# How numpy sees a weight's bits; the integer's type names the format for `gemv.widen`.
_STORED_AS: dict[torch.dtype, type[np.generic]] = {
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
    torch.float32: np.float32,
}


class WideningLinear(nn.Module, ABC):
    """A linear layer whose weight keeps its stored form, and that can hold a wide copy for a while.

    Parameters
    ----------
    weight : torch.nn.Parameter
        (n_out, whatever a row takes).
    bias : torch.Tensor or None
        (n_out,).
    """

    in_features: int

    def __init__(self, weight: nn.Parameter, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features = weight.shape[0]
        self.weight = weight
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._wide: torch.Tensor | None = None

    @abstractmethod
    def widened(self) -> torch.Tensor:
        """The weight in numbers that torch multiplies, (n_out, n_in)."""


class PackedLinear(WideningLinear):
    """A linear layer whose weight keeps its stored form while input and output are float32.

    Parameters
    ----------
    weight : torch.nn.Parameter
        (n_out, n_in), bfloat16, float16 or float32, on the CPU. Shared, not copied: a head that
        is tied to the embedding stays one tensor.
    bias : torch.Tensor or None
        (n_out,); kept in float32.
    """

    def __init__(self, weight: nn.Parameter, bias: torch.Tensor | None) -> None:
        super().__init__(weight, None if bias is None else bias.detach().float())
        self.in_features = weight.shape[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., n_in) to (..., n_out), float32."""
        x = x.float()
        rows = x.numel() // self.in_features
        if rows > MAX_ROWS:
            wide = self.widened() if self._wide is None else self._wide
            return nn.functional.linear(x, wide, self.bias)
        out = torch.empty((*x.shape[:-1], self.out_features), dtype=torch.float32)
        flat = x.detach().reshape(rows, self.in_features).contiguous().numpy()
        gemv(flat, self.stored_weight, self.stored_bias, out.view(rows, self.out_features).numpy())
        return out

    def widened(self) -> torch.Tensor:
        """The weight in float32, (n_out, n_in); the weight itself if it is so."""
        return self.weight.detach().float()

    @property
    def stored_weight(self) -> np.ndarray:
        """The weight's memory as numpy sees it, (n_out, n_in), in a format of `gemv.dot`."""
        return stored_array(self.weight)

    @property
    def stored_bias(self) -> np.ndarray:
        """(n_out,) float32, or (0,) where there is no bias."""
        return np.empty(0, np.float32) if self.bias is None else self.bias.detach().numpy()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self.weight.dtype}"


def row_pieces(
    wide: torch.Tensor, stored: torch.Tensor, n_weights: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of the same rows of both, some `n_weights` of `wide` at a time, one row at least."""
    n_rows = max(1, n_weights // wide.shape[1])
    return zip(wide.split(n_rows), stored.split(n_rows), strict=True)


def stored_array(weight: torch.Tensor) -> np.ndarray:
    """A CPU weight's memory as numpy sees it, same shape, in a format of `gemv.dot`."""
    weight = weight.detach()
    if weight.dtype == torch.float32:
        return weight.numpy()
    return weight.view(torch.int16).numpy().view(_STORED_AS[weight.dtype])


def pack_linears(model: nn.Module) -> None:
    """Let a model that was loaded in any float dtype compute in float32 on a CPU, in place.

    Linear layers become `PackedLinear` and embeddings keep their table but give float32; both
    leave the weights as stored. All else (norms, expert tensors of mixture models, routers)
    becomes float32: these modules compute with their parameters themselves, in the dtype of
    the activations.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU. A tied embedding and head stay one tensor.
    """
    kept: set[int] = set()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain_linear(child):
                packed = PackedLinear(_contiguous(child.weight), child.bias)
                packed.train(child.training)
                setattr(parent, name, packed)
                kept.update((id(packed), id(packed.weight)))
            elif isinstance(child, nn.Embedding):
                child.register_forward_hook(give_float32)
                kept.add(id(child.weight))
    for module in model.modules():
        if id(module) not in kept:
            _widen_own_tensors(module, kept)


@contextmanager
def upcast(layer: nn.Module) -> Iterator[None]:
    """Keep wide copies of a layer's packed weights while the block runs.

    Many rows at once are then multiplied by torch without widening the weights for each chunk.
    A module without packed weights is left as it is.

    Parameters
    ----------
    layer : torch.nn.Module
        Its copies take 4 bytes a weight on a CPU until the block ends, 2 on a GPU.
    """
    packed = [module for module in layer.modules() if isinstance(module, WideningLinear)]
    try:
        for module in packed:
            module._wide = module.widened()
        yield
    finally:
        for module in packed:
            module._wide = None


def _is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """A linear layer that does nothing else; a subclass with its own forward keeps it."""
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and module.weight.dtype in _STORED_AS
    )


def _contiguous(weight: torch.Tensor) -> nn.Parameter:
    """The parameter itself, so that a tied one stays tied, unless the kernel could not read it."""
    if isinstance(weight, nn.Parameter) and weight.is_contiguous():
        return weight
    return nn.Parameter(weight.detach().contiguous(), requires_grad=False)


def give_float32(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    """The forward hook that `pack_linears` puts on embeddings."""
    return output.float()


def _widen_own_tensors(module: nn.Module, kept: set[int]) -> None:
    for parameter in module.parameters(recurse=False):
        if id(parameter) not in kept and _is_narrow(parameter):
            parameter.data = parameter.data.float()
    for name, buffer in list(module.named_buffers(recurse=False)):
        if _is_narrow(buffer):
            setattr(module, name, buffer.float())


def _is_narrow(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4
