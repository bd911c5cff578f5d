"""The compiled decode step gives the logits of the model's own modules, and takes only models it knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.hook import ATTENTION_NAME, LayerRule, register_attention
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.step import make_step, module_step
from magicpig_cli.engine.stepgraph import StepGraph
from magicpig_cli.models.catalog import EMBEDDED
from magicpig_cli.models.linear import pack_linears
from magicpig_cli.models.load import LoadedModel, load_model
from magicpig_cli.models.sources import resolve

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

# Models that the compiled step takes, each with what is special about it.
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, long context": (
        "LlamaConfig",
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama, wide heads": ("LlamaConfig", {"head_dim": 32, "num_key_value_heads": 1}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral, window": ("MistralConfig", {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, windows above": ("Qwen2Config", WINDOWED),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3, yarn": ("Qwen3Config", {"head_dim": 32, "rope_parameters": YARN_ROPE, **WINDOWED}),
}

# Models that it must leave to their modules.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("LlamaConfig", {"hidden_act": "gelu"}),
    "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "gemma2": ("Gemma2Config", {"head_dim": 16}),
    "qwen3 mixture": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "granite": ("GraniteConfig", {"residual_multiplier": 0.5}),
}


class ExactAttender:
    """Keeps every key and value it is given, and attends to those its rule allows."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.calls: list[tuple[int, LayerRule]] = []
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append((layer, rule))
        known = self._kept.get(layer, (key[:, :0], value[:, :0]))
        keys, values = torch.cat([known[0], key], 1), torch.cat([known[1], value], 1)
        self._kept[layer] = keys, values
        first = 0 if rule.window is None else max(0, keys.shape[1] - rule.window)
        group = query.shape[0] // key.shape[0]
        keys, values = (part[:, first:].repeat_interleave(group, 0) for part in (keys, values))
        logits = query @ keys.transpose(1, 2) * rule.scale
        return logits.softmax(-1) @ values, logits.logsumexp(-1)


def tiny_model(config_name: str, changes: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> Any:
    """A random model that computes through our attention, packed as `models.load` does."""
    register_attention()
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**(SIZES | changes))
    config._attn_implementation = ATTENTION_NAME
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():  # biases and norms start as constants: an error would not show
        parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
        parameter.data = parameter.data.to(dtype)
    pack_linears(model)
    return model


def assert_same_steps(model: Any, n_steps: int, n_roundings: float) -> None:
    """Both steps, fed the same tokens: the same calls to attention, and logits within rounding.

    A float32 sum of n terms errs by about sqrt(n) roundings of 2^-24 of its terms' norm, and
    layers add their errors up; `n_roundings` is that count, relative to the largest logit.
    """
    compiled, modules = ExactAttender(), ExactAttender()
    with torch.inference_mode():
        step, reference = make_step(model, compiled), module_step(model, modules)  # type: ignore[arg-type]
        token_id = 1
        for _ in range(n_steps):
            expected, logits = reference(token_id), step(token_id)
            assert logits.shape == expected.shape
            assert logits.dtype == torch.float32
            error = (logits - expected).abs().max() / expected.abs().max()
            assert error <= n_roundings * 2.0**-24
            token_id = int(expected.argmax())
    assert compiled.calls == modules.calls
    assert compiled.token_ids == modules.token_ids
    assert compiled.n_tokens == n_steps


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in KNOWN), ("qwen3", torch.float16), ("llama, biases", torch.float32)],
)
def test_compiled_step_equals_the_modules(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(*KNOWN[name], dtype)
    assert StepGraph.of(model) is not None
    assert_same_steps(model, 20, n_roundings=250)
    assert StepGraph.of(model) is not None  # having run, the modules are as they were


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_run_through_their_modules(name: str) -> None:
    model = tiny_model(*OTHERS[name])
    assert StepGraph.of(model) is None
    assert_same_steps(model, 3, n_roundings=0)


def _half_rotation(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq[:-1]


def _mixed_weights(model: Any) -> None:
    linear = model.model.layers[1].mlp.up_proj
    linear.weight = nn.Parameter(linear.weight.float(), requires_grad=False)


CHANGES: dict[str, Any] = {
    "a hook": lambda model: model.model.layers[1].mlp.register_forward_hook(lambda *args: None),
    "a hook before": lambda model: model.model.norm.register_forward_pre_hook(lambda *args: None),
    "another forward": lambda model: setattr(
        model.model.layers[0], "forward", lambda *args, **kwargs: args[0]
    ),
    "one module more": lambda model: setattr(model.model.layers[2].self_attn, "q_norm", nn.Identity()),
    "a plain linear": lambda model: setattr(model, "lm_head", nn.Linear(48, 96)),
    "a subclass": lambda model: setattr(
        model.model.layers[0], "__class__", type("Mine", (type(model.model.layers[0]),), {})
    ),
    "half a rotation": _half_rotation,
    "mixed weights": _mixed_weights,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_no_longer_known(change: str) -> None:
    model = tiny_model(*KNOWN["llama"])
    assert StepGraph.of(model) is not None
    CHANGES[change](model)
    assert StepGraph.of(model) is None


def test_a_model_that_was_not_packed_is_not_known() -> None:
    config = transformers.LlamaConfig(**SIZES)
    assert StepGraph.of(transformers.AutoModelForCausalLM.from_config(config)) is None


def test_logits_belong_to_the_caller() -> None:
    with torch.inference_mode():
        step = make_step(tiny_model(*KNOWN["llama"]), ExactAttender())  # type: ignore[arg-type]
        first = step(1)
        kept = first.clone()
        step(2)
    assert torch.equal(first, kept)


@pytest.fixture(scope="module")
def real() -> LoadedModel:
    source = resolve(
        EMBEDDED, offline=False, device_kind="cpu", progress=lambda *state: None, notice=lambda sentence: None
    )
    return load_model(source.folder, torch.device("cpu"))


@pytest.mark.slow
def test_real_model_steps_equal(real: LoadedModel) -> None:
    assert StepGraph.of(real.model) is not None
    assert_same_steps(real.model, 20, n_roundings=250)


@pytest.mark.slow
def test_real_model_steps_equal_through_the_session(real: LoadedModel) -> None:
    """The store rounds keys and values to bf16: one near a tie may then differ by 2^-8 of itself.

    Float32 noise of some 2^-20 flips about one number in 2^11 that way; averaged over the keys that
    attention mixes, the logits stay within 2^-10 of their range, and the greedy tokens are the same.
    """
    ids = real.tokenizer("The harbour master's log of that winter lists every ship. " * 8)["input_ids"]
    with torch.inference_mode():
        sessions = [Session(Dense(), 30, len(ids) + 20, torch.device("cpu")) for _ in range(2)]
        for session in sessions:
            for _ in prefill(real.model, session, ids, 64):
                pass
        step, reference = make_step(real.model, sessions[0]), module_step(real.model, sessions[1])
        token_id = ids[-1]
        for _ in range(20):
            expected, logits = reference(token_id), step(token_id)
            assert (logits - expected).abs().max() <= 2.0**-10 * expected.abs().max()
            token_id = int(expected.argmax())
            assert int(logits.argmax()) == token_id
    assert sessions[0].token_ids == sessions[1].token_ids
    assert sessions[0].n_tokens == len(ids) + 20
