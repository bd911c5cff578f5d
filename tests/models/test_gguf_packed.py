"""Matrices that stay in the blocks of their GGUF file: the numbers of the unpacked ones, in fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from tiny import TOKENS, tiny_model, write_gguf

from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.step import make_step
from magicpig_cli.errors import UsageError
from magicpig_cli.models.bits import GGUF_BLOCKS
from magicpig_cli.models.gguf_blocks import row_bytes, widen_blocks
from magicpig_cli.models.gguf_packed import GgufLinear
from magicpig_cli.models.gguf_unpack import layer_packing, unpack_gguf
from magicpig_cli.models.load import load_model
from magicpig_cli.models.plan import PlanOptions, plan_memory
from magicpig_cli.models.sources import resolve
from magicpig_cli.models.survey import find_shape, shape_of_model_folder

CPU = torch.device("cpu")


def random_rows(kind: str, n_out: int, n_blocks: int) -> np.ndarray:
    """Blocks of random bytes whose scales are ordinary numbers."""
    random = np.random.default_rng(len(kind) + n_out)
    _, block_bytes = GGUF_BLOCKS[kind]
    blocks = random.integers(0, 256, (n_out * n_blocks, block_bytes), np.uint8)
    scales = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q6_K": [208]}.get(kind, [0, 2])
    for at in scales:
        numbers = random.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = numbers.view(np.uint8)
    return blocks.reshape(n_out, -1)


@pytest.mark.parametrize("kind", sorted(GGUF_BLOCKS))
def test_blocks_are_widened_as_the_reference_does(kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    assert gguf.GGML_QUANT_SIZES[number] == GGUF_BLOCKS[kind]
    for n_out, n_blocks in ((1, 1), (7, 3)):
        rows = random_rows(kind, n_out, n_blocks)
        expected = quants.dequantize(rows, number)
        found = widen_blocks(torch.from_numpy(rows), kind).numpy()
        np.testing.assert_array_equal(found, expected)
        assert row_bytes(kind, expected.shape[1]) == rows.shape[1]


@pytest.mark.parametrize("kind", sorted(GGUF_BLOCKS))
def test_a_packed_layer_multiplies_with_these_numbers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(kind, 40, 2)
    n_in = 2 * GGUF_BLOCKS[kind][0]
    monkeypatch.setattr("magicpig_cli.models.gguf_packed._WIDENED_AT_ONCE", 7 * n_in)
    layer = GgufLinear(n_in, 40, kind, True, torch.bfloat16)
    layer.weight.data.copy_(torch.from_numpy(rows))
    layer.bias.data.copy_(torch.arange(40))  # type: ignore[union-attr]
    wide = torch.from_numpy(quants.dequantize(rows, gguf.GGMLQuantizationType[kind])).bfloat16()
    assert torch.equal(layer.widened(), wide)
    x = torch.randn(3, n_in)
    torch.testing.assert_close(layer(x), x @ wide.float().T + torch.arange(40))
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def folders(model: Any, kind: str, quantized: str, tmp_path: Path) -> tuple[Path, Path]:
    """The model's GGUF file unpacked, and packed."""
    path = write_gguf(model, tmp_path / "m.gguf", kind, gguf.GGMLQuantizationType[quantized])
    unpacked, packed = tmp_path / "unpacked", tmp_path / "packed"
    for folder in (unpacked, packed):
        folder.mkdir()
    unpack_gguf(path, unpacked, lambda *step: None)
    unpack_gguf(path, packed, lambda *step: None, layer_packing)
    return unpacked, packed


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    """Of a prompt read in chunks, and of three steps behind it."""
    session = Session(Dense(), len(decoder_layers(model)), 60, CPU)
    events = prefill(model, session, [3 + i % (len(TOKENS) - 3) for i in range(40)], 16)
    found = []
    while not found:
        try:
            next(events)
        except StopIteration as end:
            found.append(end.value)
    step = make_step(model, session)
    return torch.stack(found + [step(token) for token in (3, 5, 4)])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantized", ["Q4_0", "Q8_0"])
def test_a_packed_model_computes_what_the_unpacked_one_does(
    kind: str, tied: bool, quantized: str, tmp_path: Path
) -> None:
    """Rows of query and key in transformers' order, biases, a head of its own; and half the bytes or less."""
    model = tiny_model(kind, tie_word_embeddings=tied)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn_like(parameter) * 0.1
    unpacked, packed = (load_model(folder, CPU) for folder in folders(model, kind, quantized, tmp_path))
    assert (unpacked.quantization, packed.quantization) == ("none", "gguf")
    kept = {name for name, module in packed.model.named_modules() if isinstance(module, GgufLinear)}
    assert len(kept) == 7 * len(decoder_layers(model)) + (not tied)
    for name in kept:
        wide = packed.model.get_submodule(name).widened()
        assert torch.equal(wide, unpacked.model.get_submodule(name).weight)
    assert packed.n_parameters == unpacked.n_parameters
    assert packed.weight_bytes < unpacked.weight_bytes
    torch.testing.assert_close(logits(packed.model), logits(unpacked.model), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_plan_for_a_gpu_counts_packed_bytes(tied: bool, tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=tied)
    unpacked, packed = folders(model, "llama", "Q4_0", tmp_path)
    shape, of_folder = find_shape(str(tmp_path / "m.gguf"), "cuda"), shape_of_model_folder(packed, "m")
    assert (shape.parameters, shape.packed_parameters, shape.packed_bytes) == (
        of_folder.parameters, of_folder.packed_parameters, of_folder.packed_bytes,
    )  # fmt: skip
    on_gpu = plan_memory(shape, 100, PlanOptions("cuda")).device.weights
    assert on_gpu == pytest.approx(load_model(packed, CPU).weight_bytes, rel=0.02)
    assert shape.packed_bytes / shape.packed_parameters == 18 / 32
    on_cpu = plan_memory(shape, 100, PlanOptions("cpu")).device.weights
    assert on_cpu == pytest.approx(2 * shape.parameters, rel=0.01)
    assert on_cpu == plan_memory(shape_of_model_folder(unpacked, "m"), 100, PlanOptions("cpu")).device.weights


def test_each_device_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGICPIG_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tiny_model(), tmp_path / "m.gguf", "llama", gguf.GGMLQuantizationType.Q8_0)
    told: list[str] = []

    def folder(device_kind: str) -> Path:
        return resolve(
            str(path), offline=True, device_kind=device_kind, progress=lambda *step: None, notice=told.append
        ).folder

    found = {kind: folder(kind) for kind in ("cpu", "cuda")}
    assert found["cpu"] != found["cuda"]
    assert found == {kind: folder(kind) for kind in ("cpu", "cuda")}
    assert len(told) == 2
    assert load_model(found["cpu"], CPU).quantization == "none"
    loaded = load_model(found["cuda"], CPU)
    assert loaded.quantization == "gguf"
    size = sum(file.stat().st_size for file in found["cuda"].glob("*.safetensors"))
    assert size < 0.75 * sum(file.stat().st_size for file in found["cpu"].glob("*.safetensors"))


def test_packed_weights_are_not_quantised_again(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantize` is not installed")
    _, packed = folders(tiny_model(), "llama", "Q8_0", tmp_path)
    with pytest.raises(UsageError, match="quantised already"):
        load_model(packed, CPU, quantization="int8")
