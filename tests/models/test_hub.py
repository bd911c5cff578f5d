"""Models of the hub: a whole copy is used without a network, everything else ends in one sentence."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import pytest
from hub_server import Hub, running_hub
from tiny import save_folder, tiny_model, write_gguf
from transformers import PreTrainedTokenizerFast

from magicpig_cli.errors import DamagedFile, ModelUnavailable
from magicpig_cli.models import hub as hub_module
from magicpig_cli.models.catalog import CATALOG, find_entry

NAME = "people/tiny-llama"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A whole model, with files beside it that no one needs."""
    from magicpig_cli.models.gguf_unpack import unpack_gguf

    folder = tmp_path_factory.mktemp("hub")
    (folder / "unpacked").mkdir()
    path = write_gguf(tiny_model(), folder / "m.gguf", "llama")
    unpack_gguf(path, folder / "unpacked", lambda *step: None)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "unpacked")
    whole = save_folder(tiny_model(), folder / "model", tokenizer, shard="60KB")
    for extra in ("pytorch_model.bin", "README.md", "model.onnx", "consolidated.safetensors", "m.gguf"):
        (whole / extra).write_bytes(b"not needed")
    return whole


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    """A hub that has the model, and an empty hub cache."""
    with running_hub() as server:
        server.models[NAME] = model
        use(server.url, tmp_path / "hub-cache", monkeypatch)
        yield server


def use(url: str, cache: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", url)  # for the child
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))  # this process has read it already
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(cache))


def test_a_model_is_fetched_once_with_only_what_it_needs(hub: Hub, model, found):
    source = found(NAME)
    assert source.id == NAME
    names = {path.name for path in source.folder.iterdir()}
    assert names == {p.name for p in model.iterdir() if p.suffix in (".json", ".safetensors", ".jinja")} - {
        "consolidated.safetensors"
    }
    wanted = sum((model / name).stat().st_size for name in names)
    assert found.progress[0][0] == "fetching"
    assert found.progress[-1][2] in (None, wanted)
    hub.asked.clear()
    assert found(NAME) == source
    assert found(NAME, offline=True) == source
    assert hub.asked == []


def test_what_is_missing_of_a_copy_is_fetched(hub: Hub, found):
    folder = found(NAME).folder
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.resolve().unlink()
    shard.unlink()
    with pytest.raises((DamagedFile, ModelUnavailable), match=NAME):
        found(NAME, offline=True)
    assert shard.name in {path.name for path in found(NAME).folder.glob("*.safetensors")}


def test_a_gated_model_says_how_to_get_access_and_what_else_there_is(hub: Hub, found):
    hub.gated.add(NAME)
    with pytest.raises(ModelUnavailable) as caught:
        found(NAME)
    for said in ("gated", f"https://huggingface.co/{NAME}", "hf auth login", "smollm2-135m"):
        assert said in caught.value.sentence


def test_an_unknown_model_is_told(hub: Hub, found):
    with pytest.raises(ModelUnavailable, match="there is no model people/nothing on huggingface"):
        found("people/nothing")


@pytest.mark.parametrize("name", [entry.name for entry in CATALOG if entry.name != "smollm2-135m"])
def test_an_alias_stands_for_its_hub_id(name, hub: Hub, model, found):
    entry = find_entry(name)
    assert entry is not None
    hub.models[entry.hub_id] = model
    assert found(name).id == entry.hub_id
    assert found(name.upper(), offline=True).id == entry.hub_id


def test_the_default_with_a_gpu_is_llama(hub: Hub, model, found):
    hub.models["meta-llama/Llama-3.1-8B-Instruct"] = model
    assert found("auto", device_kind="cuda").id == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_the_hubs_own_offline_switch_is_honoured(variable, hub: Hub, found, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelUnavailable, match="magicpig models pull people/tiny-llama"):
        found(NAME)
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_is_told_soon(found, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    use(f"http://127.0.0.1:{port}", tmp_path / "hub-cache", monkeypatch)
    started = time.monotonic()
    with pytest.raises(ModelUnavailable) as caught:
        found(NAME)
    assert time.monotonic() - started < 120
    assert "could not be fetched" in caught.value.sentence
    assert "smollm2-135m" in caught.value.sentence


def test_a_hub_that_accepts_and_never_answers_is_given_up(found, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "STALL_S", 2.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        use(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "hub-cache", monkeypatch)
        with pytest.raises(ModelUnavailable, match="nothing arrived"):
            found(NAME)


def test_a_cached_model_needs_no_network_at_all(hub: Hub, found, tmp_path, monkeypatch):
    source = found(NAME)
    hub.asked.clear()
    with socket.socket() as watched:
        watched.bind(("127.0.0.1", 0))
        watched.listen()
        watched.setblocking(False)
        for variable in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "HF_ENDPOINT"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{watched.getsockname()[1]}")
        assert found(NAME) == source
        with pytest.raises(BlockingIOError):  # nobody has knocked
            watched.accept()
    assert hub.asked == []


def test_a_model_that_is_broken_on_the_hub_is_refused(hub: Hub, model, found, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    sorted(broken.glob("model-*.safetensors"))[0].unlink()
    hub.models["people/broken"] = broken
    with pytest.raises(DamagedFile, match="lacks 1 of its"):
        found("people/broken")
