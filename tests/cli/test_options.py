"""Values that options become."""

from __future__ import annotations

import pytest

from magicpig_cli.cli.options import (
    ATTENTION_METHODS,
    DTYPES,
    WITH_TOLERANCE,
)
from magicpig_cli.cli.values import layer_numbers, plain_text
from magicpig_cli.errors import UsageError


def test_every_method_of_the_registry_is_offered() -> None:
    from magicpig_cli.attention.registry import METHODS
    from magicpig_cli.attention.registry import WITH_TOLERANCE as ABLE

    assert tuple(METHODS) == ATTENTION_METHODS
    assert WITH_TOLERANCE == ABLE


def test_every_dtype_of_the_loader_is_offered() -> None:
    from magicpig_cli.models.load import _DTYPES

    assert ("auto", *_DTYPES) == DTYPES


@pytest.mark.parametrize(
    ("text", "layers"),
    [(None, None), ("none", ()), ("NONE", ()), ("0", (0,)), ("16, 0,16", (0, 16))],
)
def test_layer_numbers(text: str | None, layers: tuple[int, ...] | None) -> None:
    assert layer_numbers(text) == layers


@pytest.mark.parametrize("text", ["", "-1", "0,,2", "0-3", "a", "99999", "²"])
def test_no_layer_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="dense-layers"):
        layer_numbers(text)


def test_text_that_an_ascii_locale_took_apart_is_whole_again() -> None:
    in_ascii = "café?".encode().decode("ascii", "surrogateescape")
    assert plain_text("the question", in_ascii) == "café?"
    with pytest.raises(UsageError, match="not valid UTF-8"):
        plain_text("the question", b"caf\xe9".decode("ascii", "surrogateescape"))
