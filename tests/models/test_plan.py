"""Plans against the peaks of real runs, and what is refused by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ROOT, environment, magicpig, one_sentence
from safetensors.torch import save_file
from tiny import TOKENS, save_folder, tiny_model, write_gguf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.registry import METHODS, WITHOUT_BUDGET, MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.cli.exits import ending_of
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.errors import DamagedFile, DoesNotFit, MagicPigError
from magicpig_cli.lsh.params import LshParams
from magicpig_cli.lsh.tables import BLOCK_KEYS
from magicpig_cli.models import cgroups, machine, plan
from magicpig_cli.models.catalog import CATALOG, find_entry
from magicpig_cli.models.load import load_model
from magicpig_cli.models.plan import (
    PlanOptions,
    Room,
    advice,
    longest_ctx,
    plan_memory,
    require_room,
    require_weights,
)
from magicpig_cli.models.shape import ModelShape, shape_of_entry
from magicpig_cli.models.survey import find_shape

GB = 1_000_000_000
# One answered question in a process of its own, which tells its peak and its tokens.
ASK = """
import json, sys
from magicpig_cli.cli.chatter import set_up_libraries
set_up_libraries(False, True)
from magicpig_cli.documents.document import Document
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Memory, Prompted

model, attention, characters, answer, quantize = sys.argv[1:]
text = open("samples/keepers-book.md", encoding="utf-8").read()[: int(characters)]
engine = Engine.load(EngineSettings(model=model, device="cpu", attention=attention, quantize=quantize))
for event in engine.generate(AskRequest([Document("book", text, "utf-8")], "Who?", max_tokens=int(answer))):
    if isinstance(event, Prompted):
        tokens = event.prompt_tokens + int(answer)
    if isinstance(event, Memory):
        memory = event
print(json.dumps([tokens, memory.host_peak_bytes, memory.kv_bytes, memory.table_bytes]))
"""


def entry(name: str) -> ModelShape:
    found = find_entry(name)
    assert found is not None
    return shape_of_entry(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "characters", "quantization"),
    [
        ("dense", 9_000, "none"),
        ("dsa", 17_000, "none"),
        ("lsh", 17_000, "none"),
        ("lsh", 4_000, "int8"),
        ("lsh", 4_000, "int4"),
    ],
)
def test_the_peak_of_a_real_run_is_within_15_percent_of_its_plan(
    attention: str, characters: int, quantization: str, embedded_folder: Path
) -> None:
    if quantization != "none":
        pytest.importorskip("bitsandbytes", reason="the extra `quantize` is not installed")
    arguments = [str(embedded_folder), attention, str(characters), "4", quantization]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        cwd=ROOT, env=environment(), capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    ctx, peak, kv, tables = json.loads(done.stdout)
    shape = find_shape(str(embedded_folder), "cpu")
    planned = plan_memory(shape, ctx, PlanOptions(attention=attention, quantization=quantization))
    assert planned.host.kv == pytest.approx(kv, rel=0.02)  # rows of tokens that are not generated
    assert planned.host.tables >= tables
    assert planned.host.total == pytest.approx(peak, rel=0.15), f"{peak:,} measured, {planned} planned"


def test_catalogued_shapes_have_the_published_parameter_counts() -> None:
    for known in CATALOG:
        assert shape_of_entry(known).parameters == known.parameters, known.name


def test_a_plan_knows_the_size_of_a_block_of_tables() -> None:
    assert plan._BLOCK_KEYS == BLOCK_KEYS
    assert Lsh(LshParams()).n_sinks + Lsh(LshParams()).n_recent == plan._EXACT_TOKENS


def test_a_plan_of_the_main_case_has_the_sizes_of_the_design() -> None:
    """Llama-3.1-8B at 96k tokens, 30 sampled layers: KV 11.8 + 0.8 GB, tables 6.9 GB and their offsets."""
    options = PlanOptions("cuda", n_bits=10, n_tables=150)
    planned = plan_memory(entry("llama-3.1-8b"), 96_000, options)
    assert planned.host.kv == 32 * 96_000 * 4096
    assert planned.device.static_kv == 2 * 96_000 * 4096
    assert planned.device.weights == 2 * 8_030_261_248
    ids = 30 * 8 * 150 * 2 * (96_000 - 68)
    assert ids < planned.host.tables < 1.15 * ids
    assert planned.host.computing == 0
    assert not planned.fits(Room(64 * GB, 16 * GB))
    assert planned.fits(Room(64 * GB, 24 * GB))


def tokenizer() -> PreTrainedTokenizerFast:
    words = WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="a")


def tiny_folder(folder: Path, **changes: Any) -> Path:
    tiny_model(**changes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_keys_and_values_are_priced_by_the_declared_head_dim(tmp_path: Path) -> None:
    """hidden 64, 4 heads, head_dim 32: hidden / heads would be half of it."""
    shape = find_shape(str(tiny_folder(tmp_path, kind="qwen3")), "cpu")
    planned = plan_memory(shape, 1000, PlanOptions())
    assert planned.host.kv + planned.device.static_kv == 2 * 2 * 2 * 2 * 32 * 1000


def test_sliding_layers_are_priced_by_their_window(tmp_path: Path) -> None:
    changes = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    shape = find_shape(str(tiny_folder(tmp_path, kind="gemma2", **changes)), "cpu")
    assert shape.windows == (16, None)
    row = 2 * 2 * 32 * 2
    assert plan_memory(shape, 1000, PlanOptions()).host.kv == row * (1000 + 3 * 16)
    assert shape.parameters == sum(
        t.numel() for t in tiny_model(kind="gemma2", **changes).state_dict().values()
    )


def test_planned_rows_and_tables_are_what_a_session_holds(tmp_path: Path) -> None:
    model = tiny_model()
    folder = tiny_folder(tmp_path)
    from magicpig_cli.attention.hook import register_attention
    from magicpig_cli.models.linear import pack_linears

    register_attention()
    model.set_attn_implementation("magicpig")
    pack_linears(model)
    shape = find_shape(str(folder), "cpu")
    cases: list[tuple[AttentionMethod, PlanOptions]] = [
        (Lsh(LshParams(6, 20), (0,)), PlanOptions(n_bits=6, n_tables=20, dense_layers=(0,))),
    ]
    for name in METHODS:
        if name != "lsh":
            chosen = MethodOptions(400, (0,), budget=None if name in WITHOUT_BUDGET else 0.1)
            cases.append((build_method(name, chosen), PlanOptions(attention=name, budget=chosen.budget)))
    for method, options in cases:
        session = Session(method, len(decoder_layers(model)), 400, torch.device("cpu"))
        with torch.inference_mode():
            for _ in prefill(model, session, [i % len(TOKENS) for i in range(400)], 128):
                pass
        planned = plan_memory(shape, 400, options)
        assert planned.host.kv == session.kv_bytes
        # Beside the tables of lsh a plan counts bitmaps, and the offsets of a block of late tokens.
        spare = 2 * 20 * (2**6 + 1) * 4 + 4 * 400 // 4 if method.name == "lsh" else 0
        if method.name == "pyramidkv":  # planned with the mean of all layers' budgets; the last has the least
            spare = planned.host.tables
        assert session.table_bytes <= planned.host.tables <= session.table_bytes + spare, method.name


def test_more_tokens_need_more_and_the_longest_is_the_last_that_fits() -> None:
    shape, options = entry("llama-3.2-1b"), PlanOptions()
    fixed = PlanOptions(n_bits=10, n_tables=150)
    totals = [plan_memory(shape, ctx, fixed).host.total for ctx in range(100, 131_000, 997)]
    assert totals == sorted(totals)
    room = Room(6 * GB)
    longest = longest_ctx(shape, options, room)
    assert 0 < longest < shape.context_tokens
    assert plan_memory(shape, longest, options).fits(room)
    assert not plan_memory(shape, longest + 1, options).fits(room)
    assert longest_ctx(shape, options, Room(100 * GB)) == shape.context_tokens
    assert longest_ctx(shape, options, Room(1 * GB)) == 0


@pytest.mark.parametrize(
    ("model", "ctx", "options", "room", "says"),
    [
        ("llama-3.2-1b", 60_000, PlanOptions(n_tables=150), Room(7.8 * GB), "use --tables 75"),
        ("llama-3.2-1b", 60_000, PlanOptions(), Room(6.8 * GB), "--attention dense"),
        ("llama-3.1-8b", 20_000, PlanOptions(), Room(6 * GB), "use --model"),
        ("llama-3.1-8b", 20_000, PlanOptions(), Room(14 * GB), "use --quantize int4"),
        ("llama-3.1-8b", 20_000, PlanOptions("cuda"), Room(64 * GB, 12 * GB), "use --quantize int8"),
        ("llama-3.1-8b", 20_000, PlanOptions("cuda"), Room(64 * GB, 8 * GB), "use --quantize int4"),
        ("llama-3.1-8b", 20_000, PlanOptions("cuda"), Room(64 * GB, 5 * GB), "use --device cpu"),
        ("smollm2-135m", 20_000, PlanOptions(), Room(8 * GB), "use --rope yarn:3"),
        ("llama-3.1-8b", 200_000, PlanOptions(), Room(900 * GB), "qwen3-4b, which reads 262,144"),
        ("smollm2-135m", 2_000, PlanOptions(dtype="float32"), Room(1.3 * GB), "--dtype bfloat16"),
        ("smollm2-135m", 4_000, PlanOptions(), Room(0), "close other programs"),
    ],
)
def test_advice_names_what_would_fit(
    model: str, ctx: int, options: PlanOptions, room: Room, says: str
) -> None:
    shape = entry(model)
    planned = plan_memory(shape, ctx, options)
    found = advice(planned, options, room)
    assert any(says in words for words in found), found


def test_a_refusal_has_the_numbers_and_a_way_out() -> None:
    shape, options = entry("llama-3.1-8b"), PlanOptions("cuda")
    room = Room(16 * GB, 12 * GB)
    with pytest.raises(DoesNotFit) as refused:
        require_room(plan_memory(shape, 96_000, options), options, room)
    sentence = refused.value.sentence
    assert sentence.startswith("96,000 tokens of prompt and answer with llama-3.1-8b need ")
    assert "of host memory, of which 16.0 GB are available" in sentence
    assert "on the GPU, where 12.0 GB are free" in sentence
    with pytest.raises(DoesNotFit, match=r"the model llama-3\.1-8b needs 1\d\.\d GB"):
        require_weights(shape, options, room)
    require_weights(shape, options, Room(64 * GB, 24 * GB))


def test_a_model_larger_than_the_memory_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder(tmp_path)
    # Were a weight read, this would be damage, not size.
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    monkeypatch.setattr("magicpig_cli.models.load.room", lambda device: Room(100_000_000))
    with pytest.raises(DoesNotFit, match="of host memory"):
        load_model(folder, torch.device("cpu"), model_id="tiny")


def test_memory_that_runs_out_while_loading_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(tiny_model(), tmp_path, tokenizer())
    said = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"

    def taken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", taken)
    with pytest.raises(RuntimeError, match="allocate memory") as raised:
        load_model(folder, torch.device("cpu"))
    ending = ending_of(raised.value)
    assert (ending.status, ending.failure.kind if ending.failure else None) == (1, "out_of_memory")


def test_memory_that_runs_out_while_a_weight_is_converted_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers collects such errors and in the end raises one that does not say what they were."""
    folder = mxfp4_folder(tmp_path)
    said = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"

    def failing(error: Exception) -> Any:
        def convert(*arguments: Any, **options: Any) -> None:
            raise error

        return convert

    for error in (RuntimeError(said), MemoryError()):
        monkeypatch.setattr("transformers.integrations.mxfp4.Mxfp4Dequantize.convert", failing(error))
        with pytest.raises(MemoryError) as raised:
            load_model(folder, torch.device("cpu"))
        ending = ending_of(raised.value)
        assert (ending.status, ending.failure.kind if ending.failure else None) == (1, "out_of_memory")
    broken = ValueError("blocks and scales do not match")
    monkeypatch.setattr("transformers.integrations.mxfp4.Mxfp4Dequantize.convert", failing(broken))
    with pytest.raises(DamagedFile, match=r"cannot be loaded as a model: .*blocks and scales do not match"):
        load_model(folder, torch.device("cpu"))


def mxfp4_folder(folder: Path) -> Path:
    """A gpt-oss whose experts are stored as its makers do: blocks of 32 in 4 bits, a scale each."""
    model = tiny_model("gpt_oss", num_local_experts=4, num_experts_per_tok=2, intermediate_size=64)
    save_folder(model, folder, tokenizer())
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, n_in, n_out = tensor.shape
            size = (experts, n_out, n_in // 32, 16)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, size, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.full(size[:3], 120, dtype=torch.uint8)
        else:
            tensors[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_experts_in_mxfp4_are_planned_as_they_are_unpacked(tmp_path: Path) -> None:
    folder = mxfp4_folder(tmp_path)
    shape = find_shape(str(folder), "cpu")
    loaded = load_model(folder, torch.device("cpu"))
    assert shape.parameters == loaded.n_parameters
    planned = plan_memory(shape, 100, PlanOptions()).device.weights
    assert planned == pytest.approx(loaded.weight_bytes, rel=0.02)
    assert planned > 1.5 * (folder / "model.safetensors").stat().st_size


def test_a_gguf_file_is_planned_without_being_unpacked(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MAGICPIG_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tiny_model(), tmp_path / "tiny.gguf", "llama")
    shape, twin = find_shape(str(path), "cpu"), find_shape(str(tiny_folder(tmp_path / "twin")), "cpu")
    assert (shape.parameters, shape.layer_parameters) == (twin.parameters, twin.layer_parameters)
    assert (shape.layer, shape.windows, shape.context_tokens) == (
        twin.layer,
        twin.windows,
        twin.context_tokens,
    )
    assert not (tmp_path / "cache").exists()


def test_a_model_that_is_not_here_and_not_known_is_no_guess(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MagicPigError, match="magicpig models pull"):
        find_shape("some-owner/some-model-that-is-not-here", "cpu")
    with pytest.raises(MagicPigError, match=r"did you mean llama-3\.2-1b"):
        find_shape("lama-3.2-1b", "cpu")


def test_limits_of_control_groups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    for folder, limit, used in ((group, "max", 300_000_000), (group.parent, "500000000", 400_000_000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 150000000\n")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_own_groups", lambda: ["0::/outer/inner"])
    found = machine.host_memory()
    assert (found.total_bytes, found.free_bytes) == (500_000_000, 250_000_000)


def test_an_address_limit_counts() -> None:
    code = "from magicpig_cli.models.machine import host_memory; print(host_memory().free_bytes)"
    script = f"ulimit -v 2000000; exec {sys.executable} -c '{code}'"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    assert 500_000_000 < int(done.stdout) < 2_000_000 * 1024


@pytest.mark.parametrize(("share", "status"), [(0.8, 3), (1.25, 0)])
def test_ask_refuses_what_cannot_fit_and_answers_what_can(
    share: float, status: int, embedded_folder: Path, tmp_path: Path
) -> None:
    """The free memory that the machine reports is the plan's total, times `share`."""
    book = tmp_path / "book.txt"
    book.write_text((ROOT / "samples" / "keepers-book.md").read_text(encoding="utf-8")[:6_000])
    shape = find_shape(str(embedded_folder), "cpu")
    n_bytes = int(plan_memory(shape, 1_560, PlanOptions()).host.total * share)
    (tmp_path / "sitecustomize.py").write_text(
        "import psutil\n"
        "real = psutil.virtual_memory\n"
        "own = psutil.Process()\n"
        "def smaller():\n"
        f"    free = max(0, {n_bytes} - own.memory_info().rss)\n"
        "    return real()._replace(available=free)\n"
        "psutil.virtual_memory = smaller\n"
    )
    env = environment(MAGICPIG_MODEL=str(embedded_folder), PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    result = magicpig("ask", str(book), "Who keeps the light?", "-n", "8", "-q", env=env)
    assert result.status == status, result.err
    if status == 3:
        assert result.out == ""
        assert one_sentence(result.err)
        assert "of host memory, of which" in result.err
