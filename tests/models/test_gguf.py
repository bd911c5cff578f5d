"""GGUF files: the unpacked model is the model, its positions included; damaged files are refused by name."""

from __future__ import annotations

import contextlib
import json

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import ROPE, SENTENCEPIECE, TOKENS, tiny_model, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from magicpig_cli.errors import DamagedFile, MagicPigError, ModelUnavailable
from magicpig_cli.models.gguf_file import read_gguf
from magicpig_cli.models.gguf_unpack import unpack_gguf

F32 = gguf.GGMLQuantizationType.F32
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def unpack(path, folder):
    folder.mkdir()
    unpack_gguf(path, folder, lambda *step: None)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=False)


def logits(model):
    ids = torch.arange(1, 60)[None] % len(TOKENS)
    with torch.inference_mode():
        return model.float()(ids).logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_unpacked_model_is_the_model(kind, tied, tmp_path):
    model = tiny_model(kind, tie_word_embeddings=tied)
    with torch.no_grad():  # biases and norms start as zeros and ones, which would hide a mix-up
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn_like(parameter) * 0.1
    path = write_gguf(model, tmp_path / "m.gguf", kind)
    unpacked = unpack(path, tmp_path / "unpacked")
    assert type(unpacked) is type(model)
    expected = model.state_dict()
    assert set(unpacked.state_dict()) == set(expected)
    assert all(torch.equal(value, expected[name]) for name, value in unpacked.state_dict().items())
    torch.testing.assert_close(logits(unpacked), logits(model))


@pytest.mark.parametrize("quantized", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_number_format_unpacks_to_its_own_values(quantized, tmp_path):
    kind = gguf.GGMLQuantizationType[quantized]
    model = tiny_model()
    path = write_gguf(model, tmp_path / "m.gguf", "llama", quantized=kind)
    unpacked = unpack(path, tmp_path / "unpacked").state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    values = gguf.quants.dequantize(reader["blk.1.ffn_up.weight"].data, kind)
    expected = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    assert torch.equal(unpacked[name], expected)
    error = (unpacked[name] - model.state_dict()[name]).float()
    assert error.norm() < 0.12 * model.state_dict()[name].float().norm()


@pytest.mark.parametrize("quantized", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_block_formats_that_only_llama_cpp_writes_unpack_as_the_package_does(quantized, tmp_path):
    kind = gguf.GGMLQuantizationType[quantized]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    model = tiny_model(hidden_size=256, intermediate_size=256)
    path = write_gguf(model, tmp_path / "m.gguf", "llama")
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 64, (256, 256 // block * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from magicpig_cli.models.gguf_unpack import values

    (tensor,) = read_gguf(tmp_path / "one.gguf").tensors
    found = values(np.fromfile(tmp_path / "one.gguf", np.uint8), tensor)
    np.testing.assert_array_equal(found, gguf.quants.dequantize(raw, kind))
    assert path.exists()


def test_tokenizer_keeps_markers_whole_and_merges_words(tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    unpack(path, tmp_path / "unpacked")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "unpacked", trust_remote_code=False)
    ids = tokenizer("hello world <think><|im_end|>", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "hello", "\u0120w", "o", "r", "l", "d", "\u0120", "<think>", "<|im_end|>"
    ]  # fmt: skip
    assert tokenizer.model_max_length == 512
    text = "na\u00efve \U0001f600 x != y , 'a' .\n"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    added = tokenizer.added_tokens_decoder
    assert [token.special for _, token in sorted(added.items())] == [True, True, True, False]


def test_all_end_tokens_are_kept(tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    assert unpack(path, tmp_path / "unpacked").generation_config.eos_token_id == [2, 0]


@pytest.mark.parametrize("pre", ["default", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_every_known_rule_of_splitting_spells_text_out_whole(pre, tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama", pre=pre)
    unpack(path, tmp_path / "unpacked")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "unpacked", trust_remote_code=False)
    text = "It's 12345 o'clock,\n\n\tna\u00efve \u4f60\u597d!\r\n  end"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_sentencepiece_vocabulary_spells_text_out_whole(tmp_path):
    model = tiny_model(vocab_size=300)
    path = write_gguf(model, tmp_path / "m.gguf", "llama", pre=SENTENCEPIECE)
    assert unpack(path, tmp_path / "unpacked").generation_config.eos_token_id == [2]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "unpacked", trust_remote_code=False)
    ids = tokenizer("hello", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["\u2581hello"]
    text = "hello na\u00efve \u4f60\n x"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    assert tokenizer.model_max_length == 512
    assert tokenizer.chat_template


def test_an_unknown_rule_of_splitting_is_refused_by_name(tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama", pre="klingon-bpe")
    with pytest.raises(ModelUnavailable, match="klingon-bpe"):
        unpack(path, tmp_path / "unpacked")


def llama3_factors(scale=8.0, theta=500000.0, head_dim=32):
    """As llama.cpp's converter computes them from a config."""
    factors = []
    for frequency in 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(scale)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / scale + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("scale", [8.0, 32.0])
def test_frequency_table_gives_the_positions_of_the_safetensors_twin(scale, tmp_path):
    twin = tiny_model(rope={**LLAMA3, "factor": scale}, max_position_embeddings=131072)
    factors = llama3_factors(scale)
    path = write_gguf(twin, tmp_path / "m.gguf", "llama", factors=factors)
    unpacked = unpack(path, tmp_path / "unpacked")
    found = unpacked.model.rotary_emb
    default = 1.0 / 500000.0 ** (torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(found.inv_freq, default / torch.from_numpy(factors), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.inv_freq, twin.model.rotary_emb.inv_freq, rtol=1e-5, atol=0)
    assert unpacked.config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(logits(unpacked), logits(twin))


def test_any_other_frequency_table_is_honoured_too(tmp_path):
    factors = np.linspace(1.0, 40.0, 16).astype(np.float32)
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama", factors=factors)
    unpacked = unpack(path, tmp_path / "unpacked")
    logits(unpacked)
    default = 1.0 / 10000.0 ** (torch.arange(0, 32, 2) / 32)
    rotary = unpacked.model.rotary_emb
    torch.testing.assert_close(rotary.inv_freq, default / torch.from_numpy(factors), rtol=1e-5, atol=0)
    assert rotary.attention_scaling == 1.0


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 128},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"type": "none"}, {"rope_type": "default"}),
    ],
    ids=["yarn", "linear", "none"],
)
def test_declared_scaling_gives_the_positions_of_the_safetensors_twin(scaling, rope, tmp_path):
    twin = tiny_model("qwen2", rope={**ROPE, **rope})
    extra = {f"qwen2.rope.scaling.{key}": value for key, value in scaling.items()}
    unpacked = unpack(write_gguf(twin, tmp_path / "m.gguf", "qwen2", extra=extra), tmp_path / "unpacked")
    torch.testing.assert_close(unpacked.model.rotary_emb.inv_freq, twin.model.rotary_emb.inv_freq)
    torch.testing.assert_close(logits(unpacked), logits(twin))


def test_unknown_scaling_is_refused_by_name(tmp_path):
    extra = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama", extra=extra)
    with pytest.raises(ModelUnavailable, match="'longrope'"):
        unpack(path, tmp_path / "unpacked")


def test_sliding_windows_are_kept(tmp_path):
    path = write_gguf(
        tiny_model(), tmp_path / "m.gguf", "llama", extra={"llama.attention.sliding_window": 16}
    )
    unpacked = unpack(path, tmp_path / "unpacked")
    assert (type(unpacked).__name__, unpacked.config.sliding_window) == ("MistralForCausalLM", 16)


def test_other_architectures_are_refused_by_name(tmp_path):
    for architecture, extra in (("mamba", {}), ("llama", {"llama.expert_count": 8})):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
        for key, value in extra.items():
            writer.add_uint32(key, value)
        for name in ("token_embd.weight", "output_norm.weight"):
            writer.add_tensor(name, np.zeros((4, 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ModelUnavailable, match=f"architecture {architecture}"):
            unpack_gguf(tmp_path / "m.gguf", tmp_path, lambda *step: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(tiny_model(), path, "llama").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 0.99999])
def test_a_cut_file_is_refused_with_its_name_and_size(share, whole, found, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedFile) as caught:
        found(path)
    assert "cut.gguf" in caught.value.sentence
    assert "fetch it again" in caught.value.sentence
    assert f"{path.stat().st_size:,}" in caught.value.sentence


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 8000), byte=st.integers(0, 255))
def test_no_altered_header_ends_in_anything_but_a_sentence(at, byte, whole, tmp_path):
    path = tmp_path / "altered.gguf"
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    (tmp_path / "out").mkdir(exist_ok=True)
    with contextlib.suppress(MagicPigError):  # or it is unpacked: not every byte matters
        unpack_gguf(path, tmp_path / "out", lambda *step: None)


@pytest.mark.parametrize("name", ["m-00002-of-00003.gguf", "m.gguf"])
def test_one_part_of_several_is_refused(name, found, tmp_path):
    extra = {} if "-of-" in name else {"split.count": 3}
    path = write_gguf(tiny_model(), tmp_path / name, "llama", extra=extra)
    with pytest.raises(DamagedFile, match=r"part.*--merge"):
        found(path)


def test_an_unknown_number_format_is_named(whole, found, tmp_path):
    path = tmp_path / "m.gguf"
    entry = (b"blk.0.ffn_up.weight", 8 + 19, 4 + 2 * 8)
    at = whole.index(entry[0]) + len(entry[0]) + entry[2]
    path.write_bytes(whole[:at] + (250).to_bytes(4, "little") + whole[at + 4 :])
    with pytest.raises(DamagedFile, match=r"blk\.0\.ffn_up\.weight in GGML number format 250"):
        found(path)


def test_numbers_that_are_none_are_refused(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = float("nan")
    path = write_gguf(model, tmp_path / "m.gguf", "llama")
    with pytest.raises(DamagedFile, match="NaN"):
        unpack(path, tmp_path / "unpacked")


def test_a_file_is_unpacked_once_and_again_when_it_changes(found, cache, tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    first = found(path)
    assert first.folder.parent == cache / "models"
    assert len(found.notices) == 1
    assert found.progress[0][:2] == ("unpacking", 0)
    assert found.progress[-1][1] == found.progress[-1][2]
    assert found(path) == first
    assert len(found.notices) == 1
    write_gguf(tiny_model(vocab_size=len(TOKENS) + 8), path, "llama")
    second = found(path)
    assert second.folder != first.folder
    assert json.loads((second.folder / "config.json").read_text())["vocab_size"] == len(TOKENS) + 8


def test_a_damaged_unpacked_copy_is_made_anew(found, tmp_path):
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")
    weights = found(path).folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert found(path).folder == weights.parent
    assert weights.read_bytes() == whole
    assert "damaged and is made anew" in found.notices[1]
