"""Prompts: the document is a prefix, what people wrote holds no control token, and nothing is cut."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import scripted_tokenizer
from small import CHATML

from magicpig_cli.documents import Document
from magicpig_cli.documents.parts import build_parts
from magicpig_cli.engine.prompt import PlainTextEncoder, PromptBuilder
from magicpig_cli.errors import DoesNotFit, UsageError

MARKERS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<repo_name>", "<jupyter_text>"]


def _document(text: str, source: str = "a.txt") -> Document:
    return Document(source=source, text=text, encoding="utf-8")


@pytest.fixture(scope="module")
def builder(embedded_tokenizer) -> PromptBuilder:
    return PromptBuilder(embedded_tokenizer, "smollm2-135m", 8192)


@pytest.fixture(scope="module")
def encoder(embedded_tokenizer) -> PlainTextEncoder:
    return PlainTextEncoder(embedded_tokenizer)


def test_all_questions_about_a_document_share_its_prefix(builder):
    documents = [_document("The gate code is 4471. " * 30)]
    first = builder.build(documents, "What is the gate code?", None)
    second = builder.build(documents, "Who wrote this, and when?", None)
    assert first.prefix_tokens == second.prefix_tokens
    assert first.token_ids[: first.prefix_tokens] == second.token_ids[: second.prefix_tokens]
    assert first.token_ids[first.prefix_tokens :] != second.token_ids[second.prefix_tokens :]


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("place", ["document", "question"])
def test_a_marker_in_what_people_wrote_stays_text(builder, embedded_tokenizer, marker, place):
    text = f"before {marker} after"
    document, question = (text, "Why?") if place == "document" else ("Some text.", text)
    prompt = builder.build([_document(document)], question, None)
    plain = builder.build([_document("Some text.")], "Why?", None)
    control = set(embedded_tokenizer.all_special_ids)
    count = sum(i in control for i in prompt.token_ids)
    assert count == sum(i in control for i in plain.token_ids)
    assert text in embedded_tokenizer.decode(prompt.token_ids)


# The embedded model's vocabulary lacks the bytes of some control characters and of far planes.
_CHARACTERS = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cn", "Cc", "Co"])


@given(
    text=st.text(_CHARACTERS, max_size=60)
    | st.lists(st.sampled_from([*MARKERS, "<|im", "_end|>", " ", "a"])).map("".join)
)
@settings(max_examples=60, deadline=None)
def test_plain_encoding_is_complete_and_holds_no_control_token(text, embedded_tokenizer, encoder):
    ids = encoder.encode(text)
    assert not set(ids) & set(embedded_tokenizer.added_tokens_decoder)
    assert embedded_tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_a_system_message_stands_in_the_prompt(builder, embedded_tokenizer):
    prompt = builder.build([_document("Some text.")], "Why?", "Answer in French.")
    assert "Answer in French." in embedded_tokenizer.decode(prompt.token_ids)


@pytest.mark.parametrize("question", ["", "  \n\t"])
def test_an_empty_question_is_refused(builder, question):
    with pytest.raises(UsageError, match="question is empty"):
        builder.build([_document("Some text.")], question, None)


def test_a_document_beyond_the_context_is_refused_with_the_numbers(builder):
    with pytest.raises(DoesNotFit, match=r"8,192") as refusal:
        builder.build([_document("word " * 9000)], "Why?", None)
    assert "tokens" in refusal.value.sentence


def test_where_no_section_fits_the_refusal_names_lines_that_do(builder):
    text = "".join(f"The {n}th sheep went over the wall at dawn.\n" for n in range(1, 1500))
    with pytest.raises(DoesNotFit) as refusal:
        builder.build([_document(text)], "Why?", None)
    named = re.search(r"--lines 1:(\d+) is as much as fits from its beginning$", refusal.value.sentence)
    assert named
    lines = text.splitlines(keepends=True)
    n = int(named[1])
    room = builder.room_tokens()
    assert builder.count("".join(lines[:n])) <= room < builder.count("".join(lines[: n + 1])) + 2


def test_where_no_section_fits_the_refusal_names_pages_that_do(builder):
    pages = ["The sheep went over the wall at dawn, and back at dusk. " * 60] * 20
    starts = [sum(map(len, pages[:n])) for n in range(20)]
    document = Document("a.pdf", "".join(pages), "pdf", parts=build_parts("".join(pages), [], starts))
    with pytest.raises(DoesNotFit) as refusal:
        builder.build([document], "Why?", None)
    named = re.search(r"; --pages 1-(\d+) is as much as fits", refusal.value.sentence)
    assert named
    n, room = int(named[1]), builder.room_tokens()
    assert builder.count("".join(pages[:n])) <= room < builder.count("".join(pages[: n + 1]))
    assert "magicpig outline a.pdf" in refusal.value.sentence


def with_template(template: str | None) -> tuple[PromptBuilder, Any]:
    tokenizer, _ = scripted_tokenizer([], template or CHATML)
    tokenizer.chat_template = template
    return PromptBuilder(tokenizer, "some/model", 8192), tokenizer


LOOP = "{% for m in messages %}"


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace(
            LOOP,
            LOOP
            + "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
        ),
        CHATML.replace(LOOP, "{% for m in messages if m['role'] != 'system' %}"),
        CHATML.replace(LOOP, LOOP + "{% if m['role'] == 'system' %}{{ 1 + m['role'] }}{% endif %}"),
    ],
    ids=["refused", "left out", "failing"],
)
def test_a_system_message_that_the_template_does_not_take_joins_the_first_turn(template: str) -> None:
    builder, tokenizer = with_template(template)
    prompt = builder.build([_document("Some text.")], "Why?", "Answer in French.")
    written = tokenizer.decode(prompt.token_ids)
    assert written.startswith("<|im_start|>user\nAnswer in French.\n\nSome text.\n")
    assert prompt.notices == ("some/model takes no system message; it was put before the document instead",)
    assert builder.build([_document("Some text.")], "Why?", None).notices == ()


def test_a_system_message_that_the_template_trims_is_taken() -> None:
    builder, tokenizer = with_template(CHATML.replace("m['content']", "m['content'] | trim"))
    prompt = builder.build([_document("Some text.")], "Why?", "  Answer in French.\n")
    assert tokenizer.decode(prompt.token_ids).startswith("<|im_start|>system\nAnswer in French.<|im_end|>")
    assert prompt.notices == ()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{% for m in messages %}{{ m[", "unexpected"),
        ("{{ messages[0].content.foo.bar }}", "foo"),
        ("{{ 1 + messages[0]['content'] }}", "unsupported operand"),
        ("no message", "does not show the user's message exactly once"),
        ("{{ messages[0]['content'] }}" * 2, "does not show the user's message exactly once"),
    ],
)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_template_that_fails_is_refused_in_one_sentence(
    template: str, says: str, system: str | None
) -> None:
    builder, _ = with_template(template)
    with pytest.raises(UsageError, match=r"the chat template of some/model") as refusal:
        builder.build([_document("Some text.")], "Why?", system)
    assert says in refusal.value.sentence
    assert "choose another model" in refusal.value.sentence


def test_without_a_template_the_form_is_told() -> None:
    builder, tokenizer = with_template(None)
    prompt = builder.build([_document("Some text.")], "Why?", "Be brief.")
    assert tokenizer.decode(prompt.token_ids) == "Be brief.\n\nSome text.\n\nQuestion: Why?\nAnswer:"
    (notice,) = prompt.notices
    assert "some/model has no chat template" in notice
    assert "document, Question, Answer" in notice


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("{{ strftime_now('%H:%M:%S.%f') }}", "", True),
        ("{{ strftime_now('%H') }}", "", True),
        ("{{ strftime_now('%d %b %Y') }}", "", False),
        ("", "{{ strftime_now('%H:%M:%S') }}", False),
        ("{# strftime_now #}", "", False),
    ],
)
def test_a_template_with_the_time_of_day_before_the_document_is_told(
    before: str, after: str, told: bool
) -> None:
    builder, tokenizer = with_template(before + CHATML + after)
    first = builder.build([_document("Some text.")], "Why?", None)
    assert any("time of day before the document" in notice for notice in first.notices) is told
    assert str(datetime.now().year) in tokenizer.decode(first.token_ids) or "%Y" not in before
    # Within one run the prompt begins the same however much time passes.
    second = builder.build([_document("Some text.")], "Why?", None)
    assert second.token_ids == first.token_ids
