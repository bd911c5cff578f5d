"""`magicpig doctor` as scripts and people use it, and what happens when memory runs out all the same."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import MAGICPIG, ROOT, environment, one_sentence
from transformers import AutoConfig, AutoModelForCausalLM
from warm import magicpig

from magicpig_cli.views.doctor import page

# What CLI.md promises; more may come.
FIELDS = {
    "machine": {"cpu", "instruction_sets", "cores", "host_bytes", "host_free_bytes", "devices"},
    "cache": {"path", "bytes"},
    "plan": {"model", "ctx", "fits", "device", "host", "longest_ctx", "advice"},
}
PARTS = {
    "device": {"weights", "static_kv", "hidden_states", "activations", "total", "available"},
    "host": {"kv", "tables", "total", "available"},
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing cached, and no network to ask."""
    closed = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    return environment(MAGICPIG_CACHE=str(tmp_path / "cache"), HF_HUB_CACHE=str(tmp_path / "hub"), **closed)


def planned(*arguments: str, env: dict[str, str]) -> dict[str, Any]:
    result = magicpig("doctor", *arguments, "--json", env=env)
    assert (result.status, result.err) == (0, "")
    value: dict[str, Any] = json.loads(result.out)
    return value


def test_json_has_the_fields_that_scripts_rely_on(env: dict[str, str], tmp_path: Path) -> None:
    report = planned("--model", "llama-3.1-8b", "--device", "cpu", "--ctx", "96000", env=env)
    assert set(report) >= {"machine", "versions", "cache", "plan"}
    for name, fields in FIELDS.items():
        assert set(report[name]) >= fields
    for name, fields in PARTS.items():
        assert set(report["plan"][name]) >= fields
        assert all(isinstance(report["plan"][name][field], int) for field in fields)
    plan, machine = report["plan"], report["machine"]
    assert (plan["model"], plan["ctx"]) == ("llama-3.1-8b", 96_000)
    assert plan["host"]["kv"] + plan["device"]["static_kv"] == 32 * 4096 * 96_000
    assert plan["host"]["total"] > plan["device"]["total"] > plan["device"]["weights"] == 2 * 8_030_261_248
    assert plan["fits"] == (plan["host"]["total"] <= plan["host"]["available"])
    assert 0 < machine["host_free_bytes"] <= machine["host_bytes"]
    assert machine["cores"] >= 1
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["cache"] == {"path": str(tmp_path / "cache"), "bytes": 0}
    assert not (tmp_path / "cache").exists()


def test_without_ctx_the_longest_is_planned(env: dict[str, str]) -> None:
    plan = planned("-m", "smollm2-135m", "--device", "cpu", env=env)["plan"]
    assert plan["fits"] is True
    assert plan["ctx"] == plan["longest_ctx"] == 8192
    assert plan["advice"] == []


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default", "rope_theta": 1e6}, 32_768),
        (
            {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
            131_072,
        ),
    ],
)
def test_the_context_is_the_config_s_own(
    rope: dict[str, Any], longest: int, env: dict[str, str], tmp_path: Path
) -> None:
    config = AutoConfig.for_model(
        "qwen2", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32_768, rope_parameters=rope,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    plan = planned("-m", str(tmp_path / "model"), "--device", "cpu", "--ctx", "40000", env=env)["plan"]
    assert plan["longest_ctx"] == longest
    assert plan["fits"] is (longest > 40_000)
    assert any("longer" in a or "reads" in a or "within" in a for a in plan["advice"]) is (longest < 40_000)


def test_a_page_for_people(env: dict[str, str]) -> None:
    result = magicpig("doctor", "-m", "llama-3.1-8b", "--device", "cpu", "--ctx", "120000", env=env)
    assert (result.status, result.err) == (0, "")
    for said in ("instruction sets", "host memory", "weights", "hash tables", "16.1 GB", "120,000 tokens"):
        assert said in result.out
    assert max(map(len, result.out.splitlines())) <= 100
    assert "\x1b" not in result.out


def test_a_page_with_a_gpu() -> None:
    """The same page for a machine that this one need not be."""
    report = {
        "machine": {
            "cpu": "Some CPU", "instruction_sets": ["avx2"], "cores": 8, "host_bytes": 64 * 10**9,
            "host_free_bytes": 60 * 10**9,
            "devices": [{"name": "Some GPU", "kind": "cuda", "bytes": 24 * 10**9, "free_bytes": 23 * 10**9}],
        },
        "versions": {"magicpig": "1", "python": "3.12.1", "torch": "2.9", "cuda": "12.8"},
        "cache": {"path": "some/cache", "bytes": 0},
        "plan": {
            "model": "m", "ctx": 96_000, "context_tokens": 131_072, "fits": False, "n_bits": 10,
            "n_tables": 150, "longest_ctx": 90_000, "advice": ["use --tables 75"],
            "device": {
                "kind": "cuda", "weights": 16 * 10**9, "static_kv": 8 * 10**8, "hidden_states": 7 * 10**8,
                "activations": 6 * 10**8, "overhead": 7 * 10**8, "total": 19 * 10**9,
                "available": 23 * 10**9,
            },
            "host": {
                "kv": 12 * 10**9, "tables": 7 * 10**9, "runtime": 3 * 10**9, "computing": 0,
                "total": 22 * 10**9, "available": 20 * 10**9,
            },
        },
    }  # fmt: skip
    text = page(report)
    lines = [line for line in text.splitlines() if "in all" in line]
    assert "19.0 GB" in lines[0]
    assert "22.0 GB" in lines[0]
    assert "Some GPU, 24.0 GB, 23.0 GB free" in text
    assert text.endswith("It does not fit.\n  - use --tables 75\n")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--ctx", "0"], 2, "--ctx is 0"),
        (["--ctx", "many"], 2, "not a whole number"),
        (["--bits", "99"], 2, "--bits"),
        (["-m", "lama-3.2-1b"], 2, "did you mean llama-3.2-1b"),
        (["-m", "./nowhere.gguf"], 2, "nowhere.gguf"),
        (["-m", "someone/unknown", "--device", "cpu"], 1, "magicpig models pull someone/unknown"),
        (["--device", "cuda:7"], 2, "cuda:7 was asked for"),
    ],
)
def test_refusals(arguments: list[str], status: int, says: str, env: dict[str, str]) -> None:
    result = magicpig("doctor", *arguments, env=env)
    assert (result.status, result.out) == (status, "")
    assert one_sentence(result.err)
    assert says in result.err


# The engine as it is, except that another program seems to take all memory after three tokens.
TAKEN = """
import psutil, resource, sys
from magicpig_cli.engine import engine
from magicpig_cli.engine.events import Token
real = engine.decode
def decode(*arguments, **options):
    for event in real(*arguments, **options):
        yield event
        if isinstance(event, Token) and event.index == 2:
            used = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
            {how}
engine.decode = decode
sys.argv[0] = "magicpig"
from magicpig_cli.cli.app import main
main()
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform == "darwin", reason="needs RLIMIT_AS")
@pytest.mark.parametrize(
    ("how", "as_json"),
    [
        ("import torch; torch.empty(1 << 40, dtype=torch.uint8)", True),
        ("import numpy; numpy.empty(1 << 40, numpy.uint8)", False),
    ],
)
def test_memory_that_runs_out_in_an_answer_leaves_the_answer_and_one_sentence(
    how: str, as_json: bool, embedded_folder: Path
) -> None:
    arguments = ["ask", "-", "What colour is the crane?", "-m", str(embedded_folder), "-n", "12", "--quiet"]
    done = subprocess.run(
        [*MAGICPIG[:1], "-c", TAKEN.format(how=how), *arguments, *(["--json"] if as_json else [])],
        input=b"The crane in the harbour of Vardal is green, and its gate has the code 4471.\n",
        cwd=ROOT, env=environment(), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert one_sentence(done.stderr.decode())
    assert "this machine ran out of memory; use a shorter document" in done.stderr.decode()
    if as_json:
        value = json.loads(done.stdout)
        assert (value["error"]["kind"], value["tokens"]["generated"]) == ("out_of_memory", 3)
        assert value["answer"]
    else:
        assert len(done.stdout.strip()) > 2
        assert done.stdout.endswith(b"\n")
