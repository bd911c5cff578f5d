"""Weights in 8 and 4 bits: what bitsandbytes made is what computes, in the memory that was planned."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ROOT, environment, magicpig, one_sentence
from small import small_model
from tiny import tiny_model, write_gguf
from torch import nn

from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.fingerprint import model_fingerprint
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.step import make_step
from magicpig_cli.engine.stepgraph import StepGraph
from magicpig_cli.errors import MagicPigError, UsageError
from magicpig_cli.models import bits, heap, quantize
from magicpig_cli.models.bits import QUANTIZATIONS, check_quantization
from magicpig_cli.models.gemv import MAX_ROWS
from magicpig_cli.models.linear import PackedLinear, upcast
from magicpig_cli.models.load import load_model
from magicpig_cli.models.plan import PlanOptions, plan_memory
from magicpig_cli.models.quantize import Int4Linear, Int8Linear, loading_options

bitsandbytes = pytest.importorskip("bitsandbytes", reason="the extra `quantize` is not installed")
CPU = torch.device("cpu")
SHAPE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
EACH = pytest.mark.parametrize("quantization", ["int8", "int4"])


def library_layer(
    quantization: str, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[Any, torch.Tensor]:
    """The library's own layer of a weight, and what that weight has become, (n_out, n_in), float32."""
    n_out, n_in = weight.shape
    if quantization == "int8":
        layer = bitsandbytes.nn.Linear8bitLt(n_in, n_out, bias is not None, has_fp16_weights=False)
        layer.weight = bitsandbytes.nn.Int8Params(weight, requires_grad=False).to(CPU)
        value = bitsandbytes.functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB)
    else:
        layer = bitsandbytes.nn.Linear4bit(n_in, n_out, bias is not None, compress_statistics=False)
        layer.weight = bitsandbytes.nn.Params4bit(
            weight.float(), requires_grad=False, compress_statistics=False, quant_type="nf4", module=layer
        ).to(CPU)
        value = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer, value.float()


@EACH
@pytest.mark.parametrize("rows", [1, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize(("n_in", "n_out"), [(64, 1), (576, 192), (1536, 33)])
def test_rows_compute_with_what_the_library_made(quantization: str, rows: int, n_in: int, n_out: int) -> None:
    generator = torch.Generator().manual_seed(rows + n_in)
    weight = torch.randn(n_out, n_in, generator=generator).bfloat16() * 0.1
    bias = torch.randn(n_out, generator=generator)
    x = torch.randn(rows, n_in, generator=generator)
    theirs, value = library_layer(quantization, weight, bias)
    # 127 steps to a row's largest, or 16 values to a block's: far from rounding, near to the weight.
    assert 1e-4 < (value - weight.float()).abs().mean() < (2e-3 if quantization == "int8" else 2e-2)
    holder = nn.Sequential(theirs)
    quantize.pack_quantized(holder, "a model")
    layer = holder[0]
    assert type(layer) is (Int8Linear if quantization == "int8" else Int4Linear)
    torch.testing.assert_close(layer.widened(), value, rtol=1e-6, atol=1e-9)
    bound = (n_in + 2) * 2.0**-23 * (x.double().abs() @ value.double().abs().T + bias.double().abs())
    exact = x.double() @ value.double().T + bias.double()
    assert ((layer(x) - exact).abs() <= bound).all()
    with upcast(layer):
        assert ((layer(x) - exact).abs() <= bound).all()


def test_a_row_of_zeros_stays_zero() -> None:
    for quantization in ("int8", "int4"):
        theirs, _ = library_layer(quantization, torch.zeros(4, 64, dtype=torch.bfloat16), None)
        holder = nn.Sequential(theirs)
        quantize.pack_quantized(holder, "a model")
        assert torch.equal(holder[0](torch.ones(1, 64)), torch.zeros(1, 4))


@EACH
def test_no_layer_of_the_library_outlives_its_packing(
    quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model is held twice, in library's form and in ours."""
    holder = nn.Sequential(*(library_layer(quantization, torch.ones(64, 64), None)[0] for _ in range(4)))
    weights = [weakref.ref(layer.weight) for layer in holder]
    pack, alive = quantize._packed, []

    def watched(module: nn.Module, what: str) -> PackedLinear:
        alive.append(sum(weight() is not None for weight in weights))
        return pack(module, what)

    monkeypatch.setattr(quantize, "_packed", watched)
    quantize.pack_quantized(holder, "a model")
    assert alive == [4, 3, 2, 1]


@pytest.mark.skipif(heap._libc() is None, reason="not the C library of GNU")
def test_what_is_freed_while_loading_is_the_systems_again() -> None:
    """Wide arrays between lasting ones, as packing leaves them."""
    code = (
        "import psutil, torch\n"
        "from magicpig_cli.models.heap import returned_when_freed\n"
        "rss = lambda: psutil.Process().memory_info().rss\n"
        "torch.empty(7 << 20).fill_(1)\n"  # 28 MB, freed: from now on glibc keeps arrays up to that size
        "with returned_when_freed():\n"
        "    before = rss()\n"
        "    wide, kept = [], []\n"
        "    for _ in range(100):\n"
        "        wide.append(torch.ones(1 << 19))\n"  # 2 MB
        "        kept.append(torch.ones(1 << 14))\n"  # 64 KB
        "    held = rss()\n"
        "    wide.clear()\n"
        "    print(held - before, rss() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    held, left = map(int, done.stdout.split())
    assert held > 200_000_000
    assert left < 60_000_000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: small_model(tmp_path_factory.mktemp(kind), kind, **SHAPE) for kind in ("llama", "gemma2")}


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Of the last token of a prompt read in chunks, and of two steps."""
    session = Session(Dense(), len(decoder_layers(model)), len(ids), CPU)
    events = prefill(model, session, ids[:-2], 33)
    while True:
        try:
            next(events)
        except StopIteration as end:
            found = [end.value]
            break
    step = make_step(model, session)
    return torch.stack([*found, *(step(token) for token in ids[-2:])])


@EACH
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@torch.inference_mode()
def test_a_loaded_model_computes_with_those_weights(
    quantization: str, kind: str, folders: dict[str, Path]
) -> None:
    loaded = load_model(folders[kind], CPU, quantization=quantization)
    plain = load_model(folders[kind], CPU)
    # A llama decodes in the compiled step, whose head is not quantised; gemma2 through its modules.
    assert (StepGraph.of(loaded.model) is not None) == (kind == "llama")
    assert (loaded.quantization, plain.quantization) == (quantization, "none")
    assert loaded.n_parameters == plain.n_parameters
    quantized = 0
    for name, module in plain.model.named_modules():
        twin = loaded.model.get_submodule(name)
        if isinstance(module, PackedLinear) and name != "lm_head":
            assert type(twin) in (Int8Linear, Int4Linear), name
            module.weight = nn.Parameter(twin.widened(), requires_grad=False)
            quantized += 1
    assert quantized == 4 * 7
    assert type(loaded.model.lm_head) is PackedLinear
    ids = [i % 250 for i in range(7, 107)]
    expected, found = logits(plain.model, ids), logits(loaded.model, ids)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


@EACH
def test_bytes_are_as_planned(quantization: str, folders: dict[str, Path]) -> None:
    loaded = load_model(folders["llama"], CPU, quantization=quantization)
    plain = load_model(folders["llama"], CPU)
    assert loaded.shape is not None
    planned = plan_memory(loaded.shape, 100, PlanOptions(quantization=quantization)).device.weights
    assert planned == pytest.approx(loaded.weight_bytes, rel=0.02)
    assert plan_memory(loaded.shape, 100, PlanOptions()).device.weights > planned
    saved = plain.weight_bytes - loaded.weight_bytes
    assert saved > loaded.shape.linear_parameters * (0.95 if quantization == "int8" else 1.4)


def test_an_index_of_other_weights_is_another(folders: dict[str, Path]) -> None:
    found = {
        model_fingerprint(folders["llama"], loaded.model.config, loaded.weight_dtype, loaded.quantization)
        for loaded in (load_model(folders["llama"], CPU, quantization=name) for name in QUANTIZATIONS)
    }
    assert len(found) == 3


def test_what_cannot_be_quantised_is_refused_in_one_sentence(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="choose one of none, int8, int4"):
        check_quantization("int2")
    config = folders["llama"] / "config.json"
    stored = tmp_path / "stored"
    stored.mkdir()
    for path in folders["llama"].iterdir():
        (stored / path.name).write_bytes(path.read_bytes())
    text = config.read_text(encoding="utf-8").rstrip().removesuffix("}")
    (stored / "config.json").write_text(
        text + ', "quantization_config": {"quant_method": "gptq", "bits": 4}}'
    )
    with pytest.raises(UsageError, match=r"quantised already \(gptq\)"):
        load_model(stored, CPU, quantization="int4")
    small_model(stored, **(SHAPE | {"intermediate_size": 96}))
    with pytest.raises(UsageError, match=r"down_proj of .* rows of 96 weights.*--quantize int8"):
        load_model(stored, CPU, quantization="int4")
    monkeypatch.setattr(bits, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'magicpig-cli\[quantize\]'"):
        check_quantization("int8")


def test_a_library_that_does_not_work_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*sizes: Any, **options: Any) -> None:
        raise RuntimeError("\nCUDA SETUP ERROR: Missing dependency: libcudart.so.13\n\nmore")

    monkeypatch.setattr(bitsandbytes.nn, "Linear4bit", broken)
    with pytest.raises(
        MagicPigError, match=r"cannot quantise on cpu here \(CUDA SETUP ERROR.*update it"
    ) as said:
        loading_options("int4", torch.bfloat16, CPU)
    assert "\n" not in said.value.sentence


def test_no_code_is_fetched_while_the_library_is_imported() -> None:
    with quantize.hidden("json"), pytest.raises(ImportError):
        import json
    import json

    assert json.loads("1") == 1


def test_gguf_files_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    path = write_gguf(tiny_model(), tmp_path / "tiny.gguf", "llama")
    for name, command in ((path, ["ask", "-", "Who?", "--quiet"]), (tmp_path, ["doctor"])):
        result = magicpig(
            *command, "-m", str(name), "--quantize", "int8",
            env=environment(MAGICPIG_CACHE=str(tmp_path / "cache")), stdin=b"a text",
        )  # fmt: skip
        assert (result.status, result.out) == (2, "")
        assert one_sentence(result.err)
        assert "is a GGUF file" in result.err
        assert "folder of safetensors" in result.err
    assert not (tmp_path / "cache").exists()
