"""Every family of decoders through the seam: layer-by-layer prefill in odd chunks and decode steps must
give the logits of one ordinary forward pass with transformers' own attention.

Models are tiny and random, with sliding windows far shorter than the text. The reference rounds
keys and values to bfloat16 as the store does, so that the two may differ by float32 rounding only.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.hook import ATTENTION_NAME, register_attention
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.step import make_step
from magicpig_cli.errors import DamagedFile, UsageError
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.models.architectures import check_architecture
from magicpig_cli.models.linear import pack_linears
from magicpig_cli.models.profiles import context_tokens
from magicpig_cli.models.rotation import settle_rotation
from magicpig_cli.models.shape import layer_windows
from magicpig_cli.models.survey import shape_of_model_folder

WINDOW, TEXT, STEPS = 16, 100, 3
VOCABULARY = 96
PLAIN = {"rope_theta": 10000.0, "rope_type": "default"}
LLAMA3 = {
    "rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_theta": 10000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "rope_parameters": PLAIN,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
ALTERNATING = {"num_hidden_layers": 4, "sliding_window": WINDOW, "layer_types": [SLIDING, FULL] * 2}

# Name of the case: model type and what differs from SHAPE.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "mistral, sliding": ("mistral", {"sliding_window": WINDOW}),
    "mistral, full": ("mistral", {"sliding_window": None}),
    "ministral": ("ministral", ALTERNATING),
    "qwen2": ("qwen2", {}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2-moe": ("qwen2_moe", {
        **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1,
    }),
    "qwen3": ("qwen3", {}),
    "qwen3-moe": ("qwen3_moe", {**EXPERTS, "num_experts": 4, "decoder_sparse_step": 1}),
    "mixtral": ("mixtral", {"num_experts_per_tok": 2, "num_local_experts": 4}),
    "gemma": ("gemma", {"tie_word_embeddings": True}),
    "gemma-2": ("gemma2", {
        **ALTERNATING, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    }),
    "gemma-3": ("gemma3_text", {
        "num_hidden_layers": 6, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
        "layer_types": [SLIDING] * 5 + [FULL],
        "rope_parameters": {
            SLIDING: PLAIN,
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        },
    }),
    "phi-3": ("phi3", {"head_dim": 16, "sliding_window": None}),
    "phi-3, longrope": ("phi3", {
        "head_dim": 16, "sliding_window": None, "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [1.0 + 0.7 * i for i in range(8)],
        },
    }),
    "gpt-oss": ("gpt_oss", {**ALTERNATING, "num_experts_per_tok": 2, "num_local_experts": 4}),
    "granite": ("granite", {
        "attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
        "logits_scaling": 3.0,
    }),
    "granite-moe": ("granitemoe", {
        "attention_multiplier": 0.3, "num_local_experts": 4, "num_experts_per_tok": 2,
    }),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "olmo-2": ("olmo2", {}),
    "olmo-3": ("olmo3", ALTERNATING),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "cohere": ("cohere", {"head_dim": 16, "logit_scale": 0.5, "use_qk_norm": True}),
    "cohere-2": ("cohere2", {**ALTERNATING, "head_dim": 16}),
    "glm-4": ("glm4", {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}),
    "glm-4-moe": ("glm4_moe", {
        **EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "use_qk_norm": True,
    }),
    "starcoder-2": ("starcoder2", {"head_dim": 16, "sliding_window": WINDOW}),
    "exaone-4": ("exaone4", ALTERNATING),
    "ernie-4.5": ("ernie4_5", {}),
    "seed-oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "helium": ("helium", {"head_dim": 16}),
    "hunyuan": ("hunyuan_v1_dense", {}),
}  # fmt: skip


def transformers_own(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
    """The family's eager attention, on keys and values as a store keeps them."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key.bfloat16().float(), value.bfloat16().float(), mask, **kwargs)


ALL_ATTENTION_FUNCTIONS.register("reference", transformers_own)
ALL_MASK_ATTENTION_FUNCTIONS.register("reference", ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def config_of(family: str) -> Any:
    kind, changes = FAMILIES[family]
    return AutoConfig.for_model(kind, **copy.deepcopy({**SHAPE, **changes}))


def twins(family: str) -> tuple[Any, Any]:
    """The same random weights in a model that goes through the seam and in one that does not."""
    register_attention()
    torch.manual_seed(1)
    reference = AutoModelForCausalLM.from_config(
        config_of(family), dtype=torch.float32, attn_implementation="reference"
    )
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            # Large enough that attention decides what comes out.
            noise = torch.randn_like(parameter)
            if parameter.ndim >= 2:
                parameter.copy_(noise * (0.1 if "expert" in name else 0.25))
            else:
                parameter.add_(noise * 0.1)
    seam = AutoModelForCausalLM.from_config(
        config_of(family), dtype=torch.float32, attn_implementation=ATTENTION_NAME
    )
    seam.load_state_dict(reference.state_dict())
    settle_rotation(seam)
    pack_linears(seam)
    return reference.eval(), seam.eval()


def read(model: Any, method: AttentionMethod, ids: list[int], chunk: int) -> tuple[Session, torch.Tensor]:
    """A session that has read `ids`, and the logits of the last one."""
    session = Session(method, len(decoder_layers(model)), len(ids) + STEPS, torch.device("cpu"))
    steps = prefill(model, session, ids, chunk)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return session, end.value


@pytest.fixture(scope="module")
def ids() -> list[int]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, VOCABULARY, (TEXT + STEPS,), generator=generator).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_prefill_in_odd_chunks_and_steps_equal_one_ordinary_pass(family: str, ids: list[int]) -> None:
    reference, model = twins(family)
    expected = reference(torch.tensor([ids]), use_cache=False).logits[0].float()
    spread = expected.std().item()
    methods: list[tuple[AttentionMethod, int]] = [
        (Dense(), 7),
        (Dense(), 33),
        (Dense(), WINDOW),
        # Of 64 tables of one bit, any key shares its code with the query in two, as good as surely.
        (Lsh(LshParams(1, 64), dense_layers=(), n_sinks=2, n_recent=8), 41),
    ]
    for method, chunk in methods:
        session, logits = read(model, method, ids[:TEXT], chunk)
        close(logits, expected[TEXT - 1], spread, f"prefill of chunks of {chunk}")
        step = make_step(model, session)
        for position in range(TEXT, TEXT + STEPS):
            close(step(ids[position]), expected[position], spread, f"{method.name} at token {position}")


def close(found: torch.Tensor, expected: torch.Tensor, spread: float, what: str) -> None:
    """Equal but for numbers on the edge between two bfloat16 values, which round either way."""
    error = (found - expected).abs()
    assert error.max() < 1e-2 * spread, f"{what}: off by {error.max():.2e} in a spread of {spread:.2e}"
    assert error.mean() < 3e-3 * spread, f"{what}: off by {error.mean():.2e} in the mean, of {spread:.2e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_accepted_and_its_windows_are_known(family: str) -> None:
    config = config_of(family)
    check_architecture(config, family)
    windows = layer_windows(config)
    kinds = getattr(config, "layer_types", None)
    assert len(windows) == config.num_hidden_layers
    if kinds:
        assert [window == WINDOW for window in windows] == [kind == SLIDING for kind in kinds]


@pytest.mark.parametrize("family", ["mistral, sliding", "gemma-2", "gemma-3", "gpt-oss", "starcoder-2"])
@torch.inference_mode()
def test_planned_windows_are_those_that_the_layers_use(family: str, ids: list[int]) -> None:
    _, model = twins(family)
    session, _ = read(model, Dense(), ids[:TEXT], 33)
    used = tuple(session._windows)
    assert used == layer_windows(model.config)
    kept = [store.n_tokens - store.first_token for store in session.stores if store is not None]
    assert all((n < TEXT) == (window is not None) for n, window in zip(kept, used, strict=True))


UNSUPPORTED = {
    "t5": ("T5ForConditionalGeneration", "two stacks"),
    "mamba": ("MambaForCausalLM", "attention"),
    "bert": ("BertForMaskedLM", ""),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "latent attention"),
    "qwen3_next": ("Qwen3NextForCausalLM", "linear_attention"),
    "jamba": ("JambaForCausalLM", ""),
    "llama4_text": ("Llama4ForCausalLM", "chunked_attention"),
    "bloom": ("BloomForCausalLM", ""),
    "mpt": ("MptForCausalLM", ""),
    "nemotron": ("NemotronForCausalLM", "replaced"),
    "stablelm": ("StableLmForCausalLM", "replaced"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_what_the_seam_cannot_carry_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    name, reason = UNSUPPORTED[kind]
    config = AutoConfig.for_model(kind)
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError) as refused:
        shape_of_model_folder(tmp_path, "some/model")
    assert f"some/model is of the architecture {name}, which" in refused.value.sentence
    assert reason in refused.value.sentence


def test_unknown_and_damaged_configs_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "wormhole", "architectures": ["WormholeForCausalLM"]}))
    with pytest.raises(UsageError, match="does not know"):
        shape_of_model_folder(tmp_path, "m")
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": "wide"}))
    with pytest.raises(DamagedFile, match=r"config\.json"):
        shape_of_model_folder(tmp_path, "m")


def test_yarn_stretches_the_context_where_the_config_says_how_far() -> None:
    def context(**changes: Any) -> int:
        return context_tokens(AutoConfig.for_model("qwen2", **{**SHAPE, **changes}))

    long = {"max_position_embeddings": 32_768}
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    original = {"original_max_position_embeddings": 32_768}
    assert context(**long) == 32_768
    assert context(**long, rope_parameters=yarn | original) == 131_072
    # Published with the stretched length already: not stretched again.
    assert context(max_position_embeddings=131_072, rope_parameters=yarn | original) == 131_072
    assert context(**long, rope_parameters={**LLAMA3, "original_max_position_embeddings": 8192}) == 32_768
