"""The decode step of plain Llama-shaped models on a CPU, as two compiled kernels per layer.

Through its modules a small model spends as long in Python as in arithmetic. Here the arrays
of each layer are looked up once and the kernels of `models.gemv` do the rest; attention stays
at the seam. Only modules whose computation is known exactly are taken (see `StepGraph.of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.session import Session
from magicpig_cli.lsh.jit import KERNEL_LOCK
from magicpig_cli.models.gemv import embed, finish_layer, project_logits, project_qkv
from magicpig_cli.models.linear import PackedLinear, give_float32, stored_array
from magicpig_cli.models.quantize import Int4Linear, Int8Linear


def _no_window(attention: Any) -> int | None:
    return None


def _window_of_config(attention: Any) -> int | None:
    return getattr(attention.config, "sliding_window", None)


def _window_of_module(attention: Any) -> int | None:
    window: int | None = attention.sliding_window
    return window


# Families of transformers whose decoder is norm, qkv, rope, attention, o, norm, SiLU-gated MLP and
# nothing else, with where their attention module takes its sliding window from. Qwen3 adds norms of heads.
_FAMILIES: dict[str, Callable[[Any], int | None]] = {
    "Llama": _no_window,
    "Mistral": _window_of_config,
    "Qwen2": _window_of_module,
    "Qwen3": _window_of_module,
}

# Submodules of each part; one more or one less, and it computes something else.
_DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_HEAD_NORMS = {"Qwen3": {"q_norm", "k_norm"}}
_SILU = {"SiLU", "SiLUActivation"}
_LINEAR = {PackedLinear, Int8Linear, Int4Linear}

_NONE = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's arrays in the order in which its two kernels take them, and how it attends."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]
    rule: LayerRule


class StepGraph:
    """The arrays of a recognised model. Build it with `StepGraph.of`."""

    def __init__(self, model: Any, window: Callable[[Any], int | None]) -> None:
        decoder = model.model
        self._rotary = decoder.rotary_emb
        self._table = stored_array(decoder.embed_tokens.weight)
        self._layers = [_layer_arrays(layer, window(layer.self_attn)) for layer in decoder.layers]
        self._head = (*_norm(decoder.norm), model.lm_head.stored_weight, model.lm_head.stored_bias)
        attention, mlp = decoder.layers[0].self_attn, decoder.layers[0].mlp
        self._head_dim: int = attention.head_dim
        self._n_q_heads = attention.q_proj.out_features // self._head_dim
        self._n_kv_heads = attention.k_proj.out_features // self._head_dim
        self._n_intermediate: int = mlp.gate_proj.out_features

    @classmethod
    def of(cls, model: nn.Module) -> StepGraph | None:
        """The graph of a model whose every computation is known, else None.

        Asked for are the very classes of `transformers.models.<family>` with exactly their
        submodules, packed weights of one format, SiLU, rotation of whole heads, layers of one
        shape, and no hook or replaced `forward` anywhere.
        """
        kind = type(model).__name__.removesuffix("ForCausalLM")
        if kind not in _FAMILIES or not _is_known(model, kind):
            return None
        return cls(model, _FAMILIES[kind])

    def step(self, session: Session) -> Callable[[int], torch.Tensor]:
        """A step function on `session`, with its own buffers; see `step.make_step`.

        The session's `attend` gets views of these buffers, valid until it returns.
        """
        n_vocabulary, n_hidden = self._head[2].shape
        hidden, normed = np.empty(n_hidden, np.float32), np.empty(n_hidden, np.float32)
        gated = np.empty(self._n_intermediate, np.float32)
        query = np.empty((self._n_q_heads, self._head_dim), np.float32)
        key = np.empty((self._n_kv_heads, self._head_dim), np.float32)
        value = np.empty_like(key)
        attended = np.empty_like(query)
        new_query, new_key, new_value = (torch.from_numpy(array)[:, None] for array in (query, key, value))
        like_hidden = torch.empty(0)

        def step(token_id: int) -> torch.Tensor:
            position = torch.tensor([[session.n_tokens]])
            cos, sin = (part[0, 0].numpy() for part in self._rotary(like_hidden, position))
            embed(self._table, token_id, hidden)
            for index, layer in enumerate(self._layers):
                with KERNEL_LOCK:
                    project_qkv(hidden, cos, sin, normed, query, key, value, *layer.before)
                output, _ = session.attend(index, new_query, new_key, new_value, layer.rule)
                np.copyto(attended, output[:, 0].numpy())
                with KERNEL_LOCK:
                    finish_layer(hidden, attended.reshape(-1), normed, gated, *layer.after)
            session.token_ids.append(token_id)
            logits = torch.empty(n_vocabulary)
            with KERNEL_LOCK:
                project_logits(hidden, normed, logits.numpy(), *self._head)
            return logits

        return step


def _layer_arrays(layer: Any, window: int | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v, o = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    q_norm, head_eps = _norm(attention.q_norm) if hasattr(attention, "q_norm") else (_NONE, 0.0)
    k_norm = _norm(attention.k_norm)[0] if hasattr(attention, "k_norm") else _NONE
    before = (
        *_norm(layer.input_layernorm),
        *(linear.stored_weight for linear in (q, k, v)),
        *(linear.stored_bias for linear in (q, k, v)),
        q_norm,
        k_norm,
        head_eps,
    )
    after = (
        o.stored_weight,
        o.stored_bias,
        *_norm(layer.post_attention_layernorm),
        *(linear.stored_weight for linear in (gate, up, down)),
        *(linear.stored_bias for linear in (gate, up, down)),
    )
    return _Layer(before, after, LayerRule(float(attention.scaling), 0.0, window))


def _norm(norm: Any) -> tuple[np.ndarray, float]:
    return norm.weight.detach().numpy(), float(norm.variance_epsilon)


def _is_known(model: Any, family: str) -> bool:
    """Whether every module of the model is one whose computation the kernels repeat."""

    def own(module: Any, suffix: str, parts: set[str]) -> bool:
        """The family's very class, with exactly these submodules."""
        home = f"transformers.models.{family.lower()}.modeling_{family.lower()}"
        kind = type(module)
        named = kind.__module__ == home and kind.__name__ == family + suffix
        return named and {name for name, _ in module.named_children()} == parts

    if not own(model, "ForCausalLM", {"model", "lm_head"}) or not own(model.model, "Model", _DECODER):
        return False
    decoder, layers = model.model, model.model.layers
    if not layers or len(layers) != model.config.num_hidden_layers:
        return False
    attention_parts = _PROJECTIONS | _HEAD_NORMS.get(family, set())
    known = [
        type(layers) is nn.ModuleList,
        type(decoder.embed_tokens) is nn.Embedding and decoder.embed_tokens.max_norm is None,
        own(decoder.rotary_emb, "RotaryEmbedding", set()),
        *(own(layer, "DecoderLayer", _LAYER) for layer in layers),
        *(own(layer.self_attn, "Attention", attention_parts) for layer in layers),
        *(own(layer.mlp, "MLP", _MLP) for layer in layers),
        *(type(layer.mlp.act_fn).__name__ in _SILU for layer in layers),
        *(own(norm, "RMSNorm", set()) for name, norm in model.named_modules() if name.endswith("norm")),
        *(_is_unpatched(module) for module in model.modules()),
    ]
    return all(known) and _fits_kernels(model)


def _is_unpatched(module: Any) -> bool:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return "forward" not in vars(module) and all(hook is give_float32 for hook in hooks)


def _fits_kernels(model: Any) -> bool:
    """Packed weights of one format (the head may have its own), layers of one shape, heads rotated whole."""
    layers = model.model.layers
    linears = []
    shapes = set()
    for index, layer in enumerate(layers):
        attention, mlp = layer.self_attn, layer.mlp
        own = [getattr(attention, name) for name in sorted(_PROJECTIONS)]
        own += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        linears += own
        shapes.add((attention.head_dim, *((linear.in_features, linear.out_features) for linear in own)))
        if attention.layer_idx != index:
            return False
    return (
        all(type(linear) in _LINEAR and linear.weight.device.type == "cpu" for linear in linears)
        and len({linear.weight.dtype for linear in linears}) == 1
        and type(model.lm_head) is PackedLinear
        and model.lm_head.weight.device.type == "cpu"
        and len(shapes) == 1
        and 2 * model.model.rotary_emb.inv_freq.numel() == layers[0].self_attn.head_dim
    )
