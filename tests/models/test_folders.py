"""Folders of safetensors: whole ones are found as they are, broken ones refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import save_folder, tiny_model, write_gguf
from transformers import PreTrainedTokenizerFast

from magicpig_cli.errors import DamagedFile, MagicPigError, UsageError


@pytest.fixture
def folder(tmp_path, found) -> Path:
    """A whole model of several shards."""
    unpacked = found(write_gguf(tiny_model(), tmp_path / "m.gguf", "llama")).folder
    tokenizer = PreTrainedTokenizerFast.from_pretrained(unpacked)
    return save_folder(tiny_model(), tmp_path / "model", tokenizer, shard="60KB")


def refused(found, folder: Path) -> str:
    with pytest.raises(DamagedFile) as caught:
        found(folder)
    return caught.value.sentence


def test_a_whole_folder_is_used_in_place(folder, found, monkeypatch):
    source = found(folder, offline=True)
    assert (source.folder, source.id) == (folder, str(folder))
    monkeypatch.chdir(folder.parent)
    assert found("model").folder == folder
    assert found("./model/").folder == folder


def test_a_folder_that_looks_like_a_hub_id_is_a_folder(folder, found, monkeypatch):
    (folder.parent / "org").mkdir()
    folder.rename(folder.parent / "org" / "model")
    monkeypatch.chdir(folder.parent)
    assert found("org/model").folder == folder.parent / "org" / "model"


@pytest.mark.parametrize("change", [-1, 1, -5000])
def test_a_shard_of_another_size_is_named_with_both_sizes(change, folder, found):
    shard = sorted(folder.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(data[:change] if change < 0 else data + b"x" * change)
    sentence = refused(found, folder)
    assert shard.name in sentence
    assert f"{len(data):,}" in sentence
    assert f"{len(data) + change:,}" in sentence


@pytest.mark.parametrize("kept", [0, 5, 100])
def test_a_shard_cut_inside_its_header_is_named(kept, folder, found):
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:kept])
    assert f"{shard.name} is cut short inside its header ({kept} bytes)" in refused(found, folder)


def test_a_header_of_rubbish_is_named(folder, found):
    shard = sorted(folder.glob("*.safetensors"))[0]
    for header in (b"nonsense", b"[1, 2]", b'{"a": 1}', b'{"a": {"data_offsets": "x"}}'):
        shard.write_bytes(len(header).to_bytes(8, "little") + header)
        assert f"{shard.name} has a header that cannot be read" in refused(found, folder)


def test_missing_shards_are_counted_and_named(folder, found):
    shards = sorted(folder.glob("*.safetensors"))
    shards[0].unlink()
    sentence = refused(found, folder)
    assert f"lacks 1 of its {len(shards)} weight files" in sentence
    assert shards[0].name in sentence


def test_an_index_that_names_an_absent_tensor_is_refused(folder, found):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = next(iter(index["weight_map"].values()))
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = shard
    path.write_text(json.dumps(index))
    sentence = refused(found, folder)
    assert "model.layers.9.mlp.up_proj.weight" in sentence
    assert shard in sentence


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[]", b"\xff\xfe"])
def test_settings_that_cannot_be_read_are_named(name, content, folder, found):
    (folder / name).write_bytes(content)
    assert name in refused(found, folder)


def test_folders_without_the_parts_of_a_model(folder, found, tmp_path):
    (tmp_path / "nothing").mkdir()
    assert "has no config.json" in refused(found, tmp_path / "nothing")
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(found, folder)
    (folder / "tokenizer.json").touch()
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert "holds no weights" in refused(found, folder)
    (folder / "pytorch_model.bin").touch()
    assert "pickles" in refused(found, folder)


def test_a_folder_of_ggufs(found, tmp_path):
    (tmp_path / "models").mkdir()
    path = write_gguf(tiny_model(), tmp_path / "models" / "a.gguf", "llama")
    assert found(path.parent).folder == found(path).folder
    (path.parent / "b.gguf").write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match=r"2 GGUF files \(a\.gguf, b\.gguf\); name one"):
        found(path.parent)


def test_files_that_are_no_models(folder, found, tmp_path):
    with pytest.raises(UsageError, match="name its folder"):
        found(next(folder.glob("*.safetensors")))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="neither a folder of safetensors nor a"):
        found(tmp_path / "notes.txt")
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    with pytest.raises(DamagedFile, match="is not a GGUF file"):
        found(tmp_path / "page.gguf")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lama-3.2-1b", "did you mean llama-3.2-1b"),
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("zzz", "there is no model 'zzz'; use a name of"),
        ("", "name is empty"),
        ("./nowhere", "there is no model folder or .gguf file ./nowhere"),
        ("/nowhere/m.gguf", "/nowhere/m.gguf"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_names_that_mean_no_model(name, says, found):
    with pytest.raises(UsageError) as caught:
        found(name)
    assert says in caught.value.sentence


def test_a_misspelt_path_names_its_neighbour(folder, found):
    with pytest.raises(UsageError, match=f"did you mean {folder}"):
        found(folder.parent / "modell")


@pytest.mark.parametrize("fault", ["\n", "a" * 300, "a\0b"])
def test_impossible_names_end_in_a_sentence(fault, found):
    with pytest.raises(MagicPigError):
        found(fault)
