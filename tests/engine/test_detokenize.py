"""Streaming text: pieces are whole graphemes, and joined they are the decoding of all tokens."""

from __future__ import annotations

import pytest
import regex

from magicpig_cli.engine.detokenize import StreamDecoder

TEXTS = [
    "Plain words, and a number: 4471.",
    "naïve café, e\u0301 with a combining accent",
    "emoji: 👩\u200d👩\u200d👧\u200d👦 and 🏳️\u200d🌈 and 🇩🇪🇫🇷",
    "日本語のテキスト、한국어, العربية, עברית",
    "def f(x):\n\treturn x  # two  spaces\n",
    "क्षि देवनागरी",
]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_and_complete(text, embedded_tokenizer):
    ids = embedded_tokenizer(text, add_special_tokens=False).input_ids
    decoder = StreamDecoder(embedded_tokenizer)
    pieces = [decoder.push(i) for i in ids] + [decoder.finish()]
    assert "".join(pieces) == text
    whole = regex.findall(r"\X", text)
    shown = ""
    for piece in pieces:
        assert "\ufffd" not in piece
        shown += piece
        graphemes = regex.findall(r"\X", shown)
        assert graphemes == whole[: len(graphemes)]


def test_control_tokens_are_not_shown(embedded_tokenizer):
    ids = embedded_tokenizer("one<|im_end|>two", add_special_tokens=False).input_ids
    decoder = StreamDecoder(embedded_tokenizer)
    assert "".join([*(decoder.push(i) for i in ids), decoder.finish()]) == "onetwo"
