"""Weights of linear layers in 8 or 4 bits, made by bitsandbytes while they are loaded.

On a GPU the library's own layers compute. On a CPU they would widen a whole matrix for every token
(and round activations, or ask for instructions that few CPUs have), so there only its numbers are
taken: `models.gemv` reads them as they are, and prefill widens one layer at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from magicpig_cli.errors import MagicPigError, UsageError
from magicpig_cli.models.bits import check_quantization, stored_quantization
from magicpig_cli.models.linear import PackedLinear, row_pieces
from magicpig_cli.models.nf4 import NF4_BLOCK, NF4_CODE

# How an int4 weight is stored: 16 values that divide a normal distribution evenly (arXiv 2305.14314).
_FOUR_BITS = "nf4"
# Weights that are widened together.
_WIDENED_AT_ONCE = 1 << 18
# Types of weights by which the library's layers are known.
_LIBRARY_WEIGHTS = ("Int8Params", "Params4bit")


def check_quantizable(config: Any, model_id: str) -> None:
    """Refuse to quantise weights that are quantised already.

    Parameters
    ----------
    config : transformers config
    model_id : str
        What to call the model.

    Raises
    ------
    UsageError
    """
    stored = stored_quantization(config)
    if stored is not None:
        kind = stored.get("quant_method", "some method")
        raise UsageError(
            f"the weights of {model_id} are quantised already ({getattr(kind, 'value', kind)}); leave out "
            "--quantize, or name the same model in bfloat16"
        )


def loading_options(quantization: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` takes to quantise each weight as soon as it is read; nothing for none.

    Parameters
    ----------
    quantization : str
        A name of `bits.QUANTIZATIONS`.
    dtype : torch.dtype
        Of everything else, and of activations on a GPU.
    device : torch.device

    Raises
    ------
    UsageError
        If the library is missing.
    MagicPigError
        If it does not work with this device, which is tried before gigabytes are read.
    """
    check_quantization(quantization)
    if quantization == "none":
        return {}
    from transformers import BitsAndBytesConfig

    _try_library(quantization, device)
    if quantization == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=_FOUR_BITS,
            bnb_4bit_compute_dtype=dtype,
            # Scales in 8 bits save a third of a gigabyte on a card of 8 GB.
            bnb_4bit_use_double_quant=device.type == "cuda",
        )
    return {"quantization_config": config, "device_map": {"": str(device)}}


def unpacking_options(config: Any) -> dict[str, Any]:
    """What `from_pretrained` takes to unpack experts in mxfp4 (gpt-oss) as it reads them; nothing for others.

    Left to itself it keeps them packed where it finds a package that fetches kernels from the hub, and
    unpacks them elsewhere, so that no plan could tell how many bytes they take.
    """
    method = (stored_quantization(config) or {}).get("quant_method")
    if str(getattr(method, "value", method)) != "mxfp4":
        return {}
    from transformers.utils.quantization_config import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _try_library(quantization: str, device: torch.device) -> None:
    """Quantise a small matrix and multiply with it where the model will be."""
    try:
        with hidden("kernels"):  # with that package, bitsandbytes fetches code from the hub for some CPUs
            import bitsandbytes

        linear = (
            bitsandbytes.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False)
            if quantization == "int8"
            else bitsandbytes.nn.Linear4bit(64, 32, bias=False, quant_type=_FOUR_BITS)
        )
        linear = linear.to(device).eval()
        if device.type != "cpu":
            linear(torch.ones(2, 64, dtype=torch.float16, device=device)).sum().item()
    except (ImportError, OSError, RuntimeError, AttributeError, NotImplementedError, AssertionError) as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = said[0][:160] if said else type(error).__name__
        raise MagicPigError(
            f"bitsandbytes cannot quantise on {device} here ({reason}); update it with "
            "pip install -U bitsandbytes, or leave out --quantize"
        ) from error


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let a package that may be installed seem not to be, to whatever is imported meanwhile."""
    kept = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
        if kept is not None:
            sys.modules[name] = kept


class Int8Linear(PackedLinear):
    """A linear layer whose rows are 8-bit integers, each row followed by its scale.

    Parameters
    ----------
    values : torch.Tensor
        int8, (n_out, n_in).
    row_absmax : torch.Tensor
        float32, (n_out,): what 127 stands for.
    bias : torch.Tensor or None
    """

    def __init__(self, values: torch.Tensor, row_absmax: torch.Tensor, bias: torch.Tensor | None) -> None:
        scale = (row_absmax.float() / 127.0).reshape(-1, 1).contiguous()
        rows = torch.cat([values, scale.view(torch.int8)], dim=1)
        super().__init__(nn.Parameter(rows, requires_grad=False), bias)
        self.in_features = values.shape[1]

    def widened(self) -> torch.Tensor:
        """See `PackedLinear.widened`."""
        values, scale = self.weight[:, : self.in_features], self.weight[:, self.in_features :]
        return values.float().mul_(scale.contiguous().view(torch.float32))

    @property
    def stored_weight(self) -> np.ndarray:
        """int8, (n_out, n_in + 4): see `gemv.dot`."""
        return self.weight.detach().numpy()


class Int4Linear(PackedLinear):
    """A linear layer whose rows are indices of `NF4_CODE`, two a byte, then the scales of their blocks.

    Parameters
    ----------
    packed : torch.Tensor
        uint8, (n_out * n_in / 2, 1), as bitsandbytes packs them: the first of two in the high bits.
    absmax : torch.Tensor
        float32, (n_out * n_in / 64,): a scale for each 64 weights.
    shape : tuple of int
        (n_out, n_in); n_in is a multiple of 64.
    bias : torch.Tensor or None
    """

    def __init__(
        self, packed: torch.Tensor, absmax: torch.Tensor, shape: tuple[int, int], bias: torch.Tensor | None
    ) -> None:
        n_out, n_in = shape
        pairs = packed.reshape(n_out, n_in // NF4_BLOCK, NF4_BLOCK // 2)
        codes = torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten(2)
        # The halves of a block side by side, so that a vector of bytes meets two vectors of activations.
        low, high = codes.split(NF4_BLOCK // 2, dim=2)
        scale = absmax.float().reshape(n_out, -1).contiguous().view(torch.uint8)
        rows = torch.cat([(low | high << 4).flatten(1), scale], dim=1)
        super().__init__(nn.Parameter(rows, requires_grad=False), bias)
        self.in_features = n_in

    def widened(self) -> torch.Tensor:
        """See `PackedLinear.widened`."""
        half, code = self.in_features // 2, torch.from_numpy(NF4_CODE)
        wide = torch.empty(self.out_features, self.in_features)
        # Some rows at a time: indices of all weights would take as much as the result does.
        for rows, weight in row_pieces(wide, self.weight, _WIDENED_AT_ONCE):
            pairs = weight[:, :half].reshape(len(rows), -1, NF4_BLOCK // 2)
            codes = torch.cat([pairs & 15, pairs >> 4], dim=2)
            scale = weight[:, half:].contiguous().view(torch.float32)
            torch.mul(code[codes.int()], scale[:, :, None], out=rows.view(codes.shape))
        return wide

    @property
    def stored_weight(self) -> np.ndarray:
        """uint8, (n_out, n_in / 2 + n_in / 16): see `gemv.dot`."""
        return self.weight.detach().numpy()


def pack_quantized(model: nn.Module, model_id: str) -> None:
    """Turn the library's layers of a model on a CPU into ours, one after another, in place.

    Raises
    ------
    UsageError
        If a layer's rows cannot be cut into blocks.
    """
    # By name: a list of the modules themselves would keep every weight until the last one is packed.
    for name in [name for name, module in model.named_modules() if _kind(module) in _LIBRARY_WEIGHTS]:
        parent, _, own = name.rpartition(".")
        holder = model.get_submodule(parent)
        layer = getattr(holder, own)
        packed = _packed(layer, f"the layer {name} of {model_id}")
        packed.train(layer.training)
        setattr(holder, own, packed)
        # A 4-bit weight knows its layer, and such a circle would live until Python looks for some.
        del layer.weight, layer


def leave_file(model: nn.Module) -> None:
    """Copy the weights that are as their file has them, in place, so that its mapping ends.

    What was quantised has been read from there too, and every page that was read counts as this process's
    memory as long as one weight lies in the mapping.
    """
    for module in model.modules():
        if not isinstance(module, Int8Linear | Int4Linear):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.clone()


def _kind(module: nn.Module) -> str:
    return type(getattr(module, "weight", None)).__name__


def _packed(module: nn.Module, what: str) -> PackedLinear:
    weight: Any = module.weight
    if _kind(module) == "Int8Params":
        absmax = weight.SCB if weight.SCB is not None else module.state.SCB  # type: ignore[union-attr]
        return Int8Linear(weight.data, absmax, module.bias)  # type: ignore[arg-type]
    n_out, n_in = weight.quant_state.shape
    if n_in % NF4_BLOCK:
        raise UsageError(
            f"{what} has rows of {n_in} weights, and int4 on a CPU needs a multiple of {NF4_BLOCK}; "
            "use --quantize int8"
        )
    return Int4Linear(weight.data, weight.quant_state.absmax, (n_out, n_in), module.bias)  # type: ignore[arg-type]


def n_weights(module: nn.Module, parameter: nn.Parameter) -> int:
    """Numbers that a parameter of a module stands for, however few bytes hold them."""
    weight = getattr(module, "weight", None)
    if weight is parameter and parameter.dtype in (torch.int8, torch.uint8):
        return int(module.in_features) * int(module.out_features)  # type: ignore[arg-type]
    return parameter.numel()
