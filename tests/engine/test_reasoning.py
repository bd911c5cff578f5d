"""Which part of a text is the answer, however a model marks its thoughts and tokens cut the marks."""

from __future__ import annotations

import pytest
from scripted import CHANNELS, NAMED, OPENED, scripted_tokenizer

from magicpig_cli.engine.reasoning import answer_text, opens_reasoning


@pytest.mark.parametrize(
    ("pieces", "options", "answer", "reasoning"),
    [
        (["a", "</think>", "b"], {"template": OPENED}, "b", "a"),
        (["a", "</th", "ink", ">\n", "\n b", " c"], {"template": OPENED}, "b c", "a"),
        (["a < b </", "thin", " </think>"], {"template": OPENED}, "", "a < b </thin "),
        ([" \t", "<thi", "nk>", "why", "</think>x"], {"template": NAMED}, "x", "why"),
        (["<think>", "why", "</think>", "x", "y"], {"added": ["<think>", "</think>"]}, "xy", "why"),
        (["[THINK]", "why", "[/THINK]", "x"], {"special": ["[THINK]", "[/THINK]"]}, "x", "why"),
        # Not at the beginning, or not a mark of this model: the answer's own words.
        (["See ", "<think>", " x"], {"template": NAMED}, "See <think> x", None),
        (["<think>", "x", "</think>", "y"], {}, "<think>x</think>y", None),
        ([" <thorn"], {"template": NAMED}, " <thorn", None),
        (
            ["<|channel|>", "analysis", "<|message|>", "why", "<|end|>", "<|start|>", "assistant", "x"],
            {"special": CHANNELS},
            "",
            "why",
        ),
        (["<|channel|>", "final", "<|message|>", "x", " y"], {"special": CHANNELS}, "x y", None),
        (["x", "y"], {"special": CHANNELS}, "xy", None),
    ],
)
def test_the_answer_and_the_reasoning(pieces, options, answer, reasoning) -> None:
    tokenizer, ids = scripted_tokenizer(pieces, **options)
    prompt_end = "<think>\n" if options.get("template") == OPENED else "assistant\n"
    text = answer_text(tokenizer, opens_reasoning(tokenizer, prompt_end))
    shown = thought = ""
    for i in ids:
        piece = text.push(i)
        shown, thought = shown + piece.answer, thought + piece.reasoning
        assert answer.startswith(shown + text.pending) or text.pending.startswith("<")
    last = text.finish()
    assert (shown + last.answer, thought + last.reasoning) == (answer, reasoning or "")
