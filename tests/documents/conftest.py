"""Files of any format, read as the command would, and refusals as people would see them."""

from __future__ import annotations

import pytest

from magicpig_cli.documents import Document as Read
from magicpig_cli.documents import read_sources
from magicpig_cli.errors import UsageError


@pytest.fixture
def read(tmp_path):
    def read(name: str, data: bytes | str) -> Read:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        (document,) = read_sources([str(path)], None)
        for part in document.parts:
            assert 0 <= part.start <= part.end <= len(document.text)
            assert document.text[: part.start].count("\n") + 1 == part.first_line
        return document

    return read


@pytest.fixture
def refusal(read):
    def refusal(name: str, data: bytes | str) -> str:
        with pytest.raises(UsageError) as caught:
            read(name, data)
        sentence = caught.value.sentence
        assert "\n" not in sentence
        assert name in sentence
        return sentence

    return refusal
