"""Linear layers that stay in the blocks of their GGUF file, so that a GPU holds no more than the file.

A folder that `gguf_unpack.pack_gguf` wrote names each layer's format in its config; transformers' loader then
makes these layers through its registry of quantisers and fills them byte by byte.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from magicpig_cli.models.bits import GGUF_FORMATS, GGUF_METHOD
from magicpig_cli.models.gguf_blocks import row_bytes, widen_blocks
from magicpig_cli.models.linear import WideningLinear, row_pieces

# Weights that are widened together: several times as many bytes are needed on the way.
_WIDENED_AT_ONCE = 1 << 22


class GgufLinear(WideningLinear):
    """A linear layer whose weight is blocks of a GGUF number format.

    Parameters
    ----------
    n_in, n_out : int
    kind : str
        One of `bits.GGUF_BLOCKS`.
    has_bias : bool
    dtype : torch.dtype
        What its weights are rounded to when they are widened, as an unpacked file's are.
    """

    def __init__(self, n_in: int, n_out: int, kind: str, has_bias: bool, dtype: torch.dtype) -> None:
        weight = torch.empty(n_out, row_bytes(kind, n_in), dtype=torch.uint8)
        bias = torch.empty(n_out, dtype=dtype) if has_bias else None
        super().__init__(nn.Parameter(weight, requires_grad=False), bias)
        self.in_features = n_in
        self._kind, self._dtype = kind, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., n_in) to (..., n_out), in the dtype of `x`."""
        wide = self.widened() if self._wide is None else self._wide
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, wide.to(x.dtype), bias)

    def widened(self) -> torch.Tensor:
        """The weight as an unpacked file would have it, (n_out, n_in), where it lies."""
        weight = self.weight.detach()
        wide = torch.empty(self.out_features, self.in_features, dtype=self._dtype, device=weight.device)
        for rows, blocks in row_pieces(wide, weight, _WIDENED_AT_ONCE):
            rows.copy_(widen_blocks(blocks, self._kind))
        return wide

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self._kind}"


@cache
def register_packed_gguf() -> None:
    """Let transformers' loader know such folders."""
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    class PackedGgufConfig(QuantizationConfigMixin):
        def __init__(self, quant_method: str = GGUF_METHOD, **values: Any) -> None:
            super().__init__(quant_method=quant_method)  # type: ignore[arg-type]
            self.formats: dict[str, str] = values[GGUF_FORMATS]

    class PackedGguf(HfQuantizer):
        requires_calibration = True  # nothing but a folder that is packed already can be loaded so
        quantization_config: PackedGgufConfig

        def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
            for name, kind in self.quantization_config.formats.items():
                plain = model.get_submodule(name)
                with torch.device("meta"):
                    packed = GgufLinear(
                        plain.in_features,
                        plain.out_features,
                        kind,
                        plain.bias is not None,
                        plain.weight.dtype,
                    )
                model.set_submodule(name, packed)

        def is_serializable(self) -> bool:
            return False

        @property
        def is_trainable(self) -> bool:
            return False

    register_quantization_config(GGUF_METHOD)(PackedGgufConfig)
    register_quantizer(GGUF_METHOD)(PackedGguf)
