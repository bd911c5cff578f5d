"""Prompts: the document is a prefix, what people wrote holds no control token, and nothing is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magicpig_cli.documents import Document
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
