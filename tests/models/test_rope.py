"""`--rope yarn:N`: transformers' own yarn, where a model scales nothing itself; limits and indexes follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import environment, one_sentence
from small import small_model
from transformers import AutoConfig, AutoModelForCausalLM
from warm import magicpig

from magicpig_cli.engine.fingerprint import model_fingerprint
from magicpig_cli.errors import UsageError
from magicpig_cli.models.load import load_model
from magicpig_cli.models.rotation import stretched
from magicpig_cli.models.shape import catalog_shapes
from magicpig_cli.models.survey import find_shape, shape_of_model_folder

CPU = torch.device("cpu")
TRAINED = 256
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
SLIDING, FULL = "sliding_attention", "full_attention"


def by_hand(rope: dict[str, Any], factor: float) -> dict[str, Any]:
    return rope | {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": TRAINED}


@pytest.mark.parametrize("factor", [2.0, 3.5])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "glm4", "gemma3_text"])
@torch.inference_mode()
def test_stretched_angles_are_those_of_the_same_config_written_by_hand(
    kind: str, factor: float, tmp_path: Path
) -> None:
    own, wanted = {}, {}
    if kind == "gemma3_text":  # a set of angles for each kind of layer; windows need no stretching
        own = {
            "rope_parameters": {SLIDING: DEFAULT, FULL: DEFAULT | {"rope_theta": 1e6}},
            "sliding_window": 16,
        }
        own["layer_types"] = [SLIDING, FULL] * 2
        wanted = {SLIDING: DEFAULT, FULL: by_hand(DEFAULT | {"rope_theta": 1e6}, factor)}
    else:
        partial = {"partial_rotary_factor": 0.5} if kind == "glm4" else {}
        own = {"rope_parameters": DEFAULT | partial}
        wanted = by_hand(DEFAULT | partial, factor)
    small_model(tmp_path, kind, max_position_embeddings=TRAINED, **own)
    loaded = load_model(tmp_path, CPU, "float32", stretch=factor)
    config = AutoConfig.from_pretrained(tmp_path)
    config.rope_parameters = wanted
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, config=config, dtype=torch.float32).eval()
    plain = load_model(tmp_path, CPU, "float32")
    assert (plain.context_tokens, loaded.context_tokens) == (TRAINED, int(TRAINED * factor))
    assert loaded.shape is not None
    assert loaded.shape.context_tokens == loaded.context_tokens
    ids = torch.randint(3, 200, (1, int(TRAINED * factor)), generator=torch.Generator().manual_seed(1))
    expected = reference(ids, use_cache=False).logits
    # transformers' attention in place of ours, which is not called in this way.
    loaded.model.set_attn_implementation("sdpa")
    plain.model.set_attn_implementation("sdpa")
    found = loaded.model(ids, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    assert (plain.model(ids, use_cache=False).logits - expected).abs().max() > 0.01 * expected.std()


def test_an_index_of_unstretched_positions_is_another(tmp_path: Path) -> None:
    small_model(tmp_path)
    found = {
        model_fingerprint(
            tmp_path, load_model(tmp_path, CPU, stretch=factor).model.config, "bfloat16", "none"
        )
        for factor in (None, 2.0, 4.0)
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("kind", "rope", "says"),
    [
        ("llama", DEFAULT | {"rope_type": "linear", "factor": 2.0}, r"already \(linear\)"),
        ("qwen2", by_hand(DEFAULT, 4.0), r"already \(yarn\) and reads 1,024"),
        ("gpt2", None, "no rotary positions"),
    ],
)
def test_a_model_that_cannot_be_stretched_is_refused_by_name(
    kind: str, rope: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    changes = {"n_positions": TRAINED} if kind == "gpt2" else {"rope_parameters": rope}
    config = AutoConfig.for_model(kind, max_position_embeddings=TRAINED, vocab_size=64, **changes)
    config.architectures = [
        {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}.get(kind, "GPT2LMHeadModel")
    ]
    config.save_pretrained(tmp_path)
    shape = shape_of_model_folder(tmp_path, "some/model")
    assert stretched(shape, None) is shape
    with pytest.raises(UsageError, match=f"some/model .*{says}"):
        stretched(shape, 2.0)


def test_catalogued_models_that_scale_are_known_without_their_files() -> None:
    kinds = {shape.id: shape.rope for shape in catalog_shapes()}
    assert kinds["llama-3.1-8b"] == kinds["llama-3.2-1b"] == "llama3"
    assert kinds["smollm2-135m"] == "default"
    assert stretched(find_shape("smollm2-135m", "cpu"), 2.0).context_tokens == 16_384


@pytest.mark.parametrize(
    "value", ["yarn", "yarn:1", "yarn:0.5", "yarn:x", "yarn:33", "linear:2", "yarn:-2", "yarn:inf", ""]
)
def test_what_is_no_stretch_is_refused(value: str) -> None:
    result = magicpig("doctor", "--rope", value)
    assert (result.status, result.out) == (2, "")
    assert one_sentence(result.err)
    assert "must be yarn:N such as yarn:2" in result.err


def test_a_document_too_long_for_the_model_is_read_on_request_and_with_a_warning(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model", max_position_embeddings=TRAINED)
    book = tmp_path / "book.txt"
    book.write_text("The heron keeps the gate. " * 12)
    ask = ("ask", str(book), "Who keeps it?", "-m", str(model), "-n", "2")
    refused = magicpig(*ask)
    assert (refused.status, refused.out) == (3, "")
    assert "reads at most 256" in refused.err
    assert "--rope yarn:2" in refused.err
    read = magicpig(*ask, "--rope", "yarn:2")
    assert read.status == 0, read.err
    warnings = [line for line in read.err.splitlines() if "stretched" in line]
    assert len(warnings) == 1
    assert "from 256 tokens, for which it was trained, to 512" in warnings[0]
    still = magicpig(*ask, "--rope", "yarn:1.1", env=environment())
    assert still.status == 3
    assert "reads at most 281" in still.err
