"""Packed weights compute what the same weights in float32 compute, alone and inside whole models."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
import transformers
from torch import nn

from magicpig_cli.models.gemv import MAX_ROWS, widen
from magicpig_cli.models.linear import PackedLinear, pack_linears, upcast
from magicpig_cli.models.load import LoadedModel

DTYPES = [torch.bfloat16, torch.float16, torch.float32]

# Architectures by the config that names them; the last two hold experts in tensors that are no nn.Linear.
TINY: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "MistralConfig": {"sliding_window": 8},
    "Qwen2Config": {"tie_word_embeddings": True},
    "Qwen3Config": {"head_dim": 16},
    "Phi3Config": {"pad_token_id": 0},
    "Gemma2Config": {"head_dim": 16},
    "Gemma3TextConfig": {"head_dim": 16},
    "MixtralConfig": {"num_local_experts": 4},
    "GptOssConfig": {"num_local_experts": 4, "head_dim": 16},
}


def tiny_model(name: str, dtype: torch.dtype) -> Any:
    """A random two-layer model of an architecture, its weights rounded to `dtype`."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    config = getattr(transformers, name)(**(sizes | TINY[name]))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():  # biases and norms start as constants: an error would not show
        parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
        parameter.data = parameter.data.to(dtype)  # not buffers: from_pretrained keeps rope's in float32
    return model


def float32_copy(model: Any) -> Any:
    """The same weights in float32, as transformers itself computes with them."""
    name = type(model.config).__name__
    other = tiny_model(name, torch.float32)
    other.load_state_dict({key: value.float() for key, value in model.state_dict().items()})
    return other


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_finite_16_bit_weight_is_widened_exactly(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(dtype) if dtype != torch.float32 else bits.float()
    every = every[torch.isfinite(every)][:, None].contiguous()
    layer = PackedLinear(nn.Parameter(every, requires_grad=False), None)
    assert torch.equal(layer(torch.ones(1, 1))[0], every[:, 0].float())


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="types are checked where kernels are compiled")
def test_an_unknown_weight_format_is_refused() -> None:
    from numba.core.errors import NumbaError

    with pytest.raises(NumbaError, match="float64"):
        numba.njit(lambda value: widen(value))(np.float64(1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, MAX_ROWS, MAX_ROWS + 1, 33])
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (7, 3), (576, 192), (130, 1001)])
def test_packed_linear_matches_double_precision(dtype: torch.dtype, rows: int, n_in: int, n_out: int) -> None:
    generator = torch.Generator().manual_seed(rows * n_in)
    weight = torch.randn(n_out, n_in, generator=generator).to(dtype)
    bias = torch.randn(n_out, generator=generator).to(dtype)
    x = torch.randn(2, rows, n_in, generator=generator)[:1]
    layer = PackedLinear(nn.Parameter(weight, requires_grad=False), bias)
    # Any order of n_in float32 products and sums errs by at most about n_in roundings of the absolute sum.
    bound = (n_in + 2) * 2.0**-24 * (x.double().abs() @ weight.double().abs().T + bias.double().abs())
    exact = x.double() @ weight.double().T + bias.double()
    assert layer(x).dtype == torch.float32
    assert ((layer(x) - exact).abs() <= bound).all()
    with upcast(layer):
        assert ((layer(x) - exact).abs() <= bound).all()


def test_rows_that_are_not_contiguous() -> None:
    layer = PackedLinear(nn.Parameter(torch.randn(5, 6).bfloat16(), requires_grad=False), None)
    x = torch.randn(6, 3).T
    torch.testing.assert_close(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_whole_models_compute_in_float32(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype)
    reference = float32_copy(model)
    scale = getattr(reference.get_input_embeddings(), "embed_scale", None)
    if scale is not None:  # Gemma-3 rounds its embedding scale, and the product, to the weights' dtype
        table = reference.get_input_embeddings()
        model_scale = scale.to(dtype).float()
        table.register_forward_hook(lambda module, args, out: (out / scale * model_scale).to(dtype).float())
    pack_linears(model)
    ids = torch.randint(0, 96, (1, 20))
    for width in (1, 20):  # the GEMV, and torch's product
        expected = reference(input_ids=ids[:, :width], use_cache=False).logits
        logits = model(input_ids=ids[:, :width], use_cache=False).logits
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)
        with upcast(model):
            torch.testing.assert_close(model(input_ids=ids[:, :width], use_cache=False).logits, logits)


def test_upcast_ends_with_the_block_even_when_it_fails() -> None:
    model = tiny_model("LlamaConfig", torch.bfloat16)
    pack_linears(model)
    linear = model.model.layers[0].mlp.up_proj
    with upcast(model.model.layers[0]):
        assert linear._wide is not None
        assert model.model.layers[1].mlp.up_proj._wide is None
    assert linear._wide is None
    with pytest.raises(KeyError), upcast(model.model.layers[0]):
        raise KeyError
    assert linear._wide is None


def test_a_tied_head_stays_one_tensor_and_is_counted_once() -> None:
    model = tiny_model("Qwen2Config", torch.bfloat16)
    before = LoadedModel(model, None, "bfloat16", 128, frozenset()).n_parameters
    pack_linears(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    loaded = LoadedModel(model, None, "bfloat16", 128, frozenset())
    assert loaded.n_parameters == before == sum(p.numel() for p in model.parameters())
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert loaded.weight_bytes == 2 * matrices + 4 * (before - matrices)
    assert {p.dtype for p in model.parameters() if p.ndim == 2} == {torch.bfloat16}


def test_a_model_that_is_not_packed_is_left_alone_by_upcast() -> None:
    layer = nn.Linear(3, 2)
    with upcast(layer):
        assert list(layer.state_dict()) == ["weight", "bias"]
