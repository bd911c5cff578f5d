"""From documents and a question to token ids: the model's own chat template, document first.

The document stands before the question, so that its tokens are a prefix that any question
can reuse. What people wrote (document, question) is encoded as plain text: a string such as
`<|im_end|>` in it stays text and never becomes a control token; only the template's own
parts may hold control tokens.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from magicpig_cli.documents import Document
from magicpig_cli.documents.sources import STANDARD_INPUT
from magicpig_cli.engine.events import DocumentInfo
from magicpig_cli.engine.reasoning import opens_reasoning
from magicpig_cli.engine.sizes import longest_beginning, part_sizes
from magicpig_cli.errors import DoesNotFit, UsageError

# Wording around document and question; chosen by measurement on the embedded model (docs/accuracy.md).
INTRODUCTION = ""
BRIDGE = "\n\nQuestion: "

# Kept free for a question and an answer where a part of a document is said to fit.
RESERVE_TOKENS = 256
# Published models are stretched to at most so many times their trained context (Qwen2.5 and Qwen3).
_FARTHEST_STRETCH = 4

# Stand-ins while the template is rendered. Private-use characters, so no template knows them.
_SYSTEM_MARK = "\ue0d0system\ue0d1"
_DOCUMENT_MARK = "\ue0d0document\ue0d1"
_QUESTION_MARK = "\ue0d0question\ue0d1"
_ANSWER_MARK = "\ue0d0answer\ue0d1"
_NEXT_MARK = "\ue0d0next\ue0d1"

# The library gives templates a clock, and takes no other in its place.
_CLOCK_CALL = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
# What templates fail with: by their own refusal, or by what they make of a message.
_TEMPLATE_FAULTS = (TemplateError, ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that was answered, with the answer's token ids exactly as they were generated."""

    question: str
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a whole prompt.

    Attributes
    ----------
    token_ids : tuple of int
    prefix_tokens : int
        Tokens up to the end of the document; the same for every question about it.
    documents : tuple of DocumentInfo
    document_tokens : int
        Tokens of the documents alone.
    notices : tuple of str
        What a person should know of how the prompt was built.
    reasoning_open : bool
        The template has opened the model's reasoning, so that an answer begins within it.
    """

    token_ids: tuple[int, ...]
    prefix_tokens: int
    documents: tuple[DocumentInfo, ...]
    document_tokens: int
    notices: tuple[str, ...]
    reasoning_open: bool = False


class PromptBuilder:
    """Builds prompts for one model.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    model_id : str
        Named in refusals.
    context_tokens : int
        The model's limit.
    stretchable : bool
        Whether `--rope` could move it.
    """

    def __init__(self, tokenizer: Any, model_id: str, context_tokens: int, stretchable: bool = False) -> None:
        self._tokenizer = tokenizer
        self._model_id = model_id
        self._context_tokens = context_tokens
        self._stretchable = stretchable
        # One for all prompts: a template that writes the time would else begin every one of them anew.
        self._clock = datetime.now()
        self._plain = PlainTextEncoder(tokenizer)

    def build(
        self,
        documents: Sequence[Document],
        question: str,
        system: str | None,
        history: Sequence[Turn] = (),
    ) -> Prompt:
        """The prompt, checked to fit.

        Parameters
        ----------
        documents : sequence of Document
        question : str
        system : str or None
        history : sequence of Turn
            Questions about the same documents, and their answers, before this one. The prompt begins with
            the very tokens of the last one and its answer, so that nothing need be read again.

        Raises
        ------
        UsageError
            If the question is blank.
        DoesNotFit
            If there is no room left for even one token of an answer.
        """
        if not question.strip():
            raise UsageError('the question is empty; give one, such as "summarize chapter 3"')
        prefix, (bridge, tail) = self._prefix(documents, system)
        token_ids = [*prefix.token_ids, *bridge]
        joint, next_tail = self._joint() if history else ([], [])
        for turn in history:
            token_ids += [*self._plain.encode(turn.question), *tail, *turn.answer_ids, *joint]
            tail = next_tail
        token_ids += [*self._plain.encode(question), *tail]
        if history:
            self._check_conversation_fits(len(token_ids), len(prefix.token_ids))
        self._check_fit(documents, prefix.documents, len(token_ids))
        written = self._tokenizer.decode(tail, skip_special_tokens=False)
        return replace(
            prefix,
            token_ids=tuple(token_ids),
            reasoning_open=opens_reasoning(self._tokenizer, written),
        )

    def prefix(self, documents: Sequence[Document], system: str | None) -> Prompt:
        """What every question about the documents begins with, checked to leave room for one.

        Raises
        ------
        DoesNotFit
        """
        prefix, (bridge, tail) = self._prefix(documents, system)
        self._check_fit(documents, prefix.documents, len(prefix.token_ids) + len(bridge) + 1 + len(tail))
        return prefix

    def _prefix(
        self, documents: Sequence[Document], system: str | None
    ) -> tuple[Prompt, tuple[list[int], list[int]]]:
        """The prompt up to the end of the documents; and token ids before and after a question."""
        head, bridge, tail, notices = self._frame(system)
        encoded = [self._plain.encode(document.text_with_heading) for document in documents]
        token_ids = (*head, *(i for ids in encoded for i in ids))
        infos = tuple(
            DocumentInfo(d.source, d.encoding, len(d.text), len(ids), d.part)
            for d, ids in zip(documents, encoded, strict=True)
        )
        n_prefix = len(token_ids)
        return Prompt(token_ids, n_prefix, infos, n_prefix - len(head), tuple(notices)), (bridge, tail)

    def _frame(self, system: str | None) -> tuple[list[int], list[int], list[int], list[str]]:
        """Token ids before the document, between document and question, and after; and notices."""
        rendered, notices = self._render(system)
        before, _, rest = rendered.partition(_DOCUMENT_MARK)
        between, _, after = rest.partition(_QUESTION_MARK)
        return self._control(before), self._control(between), self._control(after), notices

    def _joint(self) -> tuple[list[int], list[int]]:
        """Token ids between an answer and the next question, and after that."""
        if not self._tokenizer.chat_template:
            return self._control("\n\nQuestion: "), self._control("\nAnswer:")
        turns = [
            {"role": "user", "content": f"{INTRODUCTION}{_DOCUMENT_MARK}{BRIDGE}{_QUESTION_MARK}"},
            {"role": "assistant", "content": _ANSWER_MARK},
            {"role": "user", "content": _NEXT_MARK},
        ]
        rendered = self._apply(turns, (_DOCUMENT_MARK, _QUESTION_MARK, _ANSWER_MARK, _NEXT_MARK))
        between, _, after = rendered.partition(_ANSWER_MARK)[2].partition(_NEXT_MARK)
        return self._control(between), self._control(after)

    def _check_conversation_fits(self, prompt_tokens: int, prefix_tokens: int) -> None:
        if prompt_tokens >= self._context_tokens:
            raise DoesNotFit(
                f"the conversation makes {prompt_tokens:,} tokens (documents {prefix_tokens:,}), but "
                f"{self._model_id} reads at most {self._context_tokens:,}; forget the turns with /reset"
            )

    def _render(self, system: str | None) -> tuple[str, list[str]]:
        user = f"{INTRODUCTION}{_DOCUMENT_MARK}{BRIDGE}{_QUESTION_MARK}"
        if not self._tokenizer.chat_template:
            notice = (
                f"{self._model_id} has no chat template (a base model?), so the prompt is plain text: "
                "document, Question, Answer"
            )
            start = self._tokenizer.bos_token or ""
            lead = f"{system}\n\n" if system else ""
            return f"{start}{lead}{_DOCUMENT_MARK}\n\nQuestion: {_QUESTION_MARK}\nAnswer:", [notice]
        turns = [{"role": "user", "content": user}]
        notices = self._told_of_time(turns)
        if system is None:
            return self._apply(turns), notices
        if self._takes_system(turns):
            return self._apply([{"role": "system", "content": system}, *turns]), notices
        joined = [{"role": "user", "content": f"{system}\n\n{user}"}]
        notice = f"{self._model_id} takes no system message; it was put before the document instead"
        return self._apply(joined), [notice, *notices]

    def _takes_system(self, turns: list[dict[str, str]]) -> bool:
        """Whether the template shows a system turn: some (Gemma, older Mistral) refuse it or leave it out."""
        try:
            return _SYSTEM_MARK in self._rendered([{"role": "system", "content": _SYSTEM_MARK}, *turns])
        except _TEMPLATE_FAULTS:
            return False

    def _told_of_time(self, turns: list[dict[str, str]]) -> list[str]:
        """A notice if the template writes before the document what changes within the day."""
        if "strftime_now" not in str(self._tokenizer.chat_template):
            return []
        now = self._clock
        other = now.replace(
            hour=(now.hour + 11) % 24, minute=(now.minute + 31) % 60, second=(now.second + 31) % 60
        )
        heads = {self._apply(turns, clock=clock).partition(_DOCUMENT_MARK)[0] for clock in (now, other)}
        if len(heads) == 1:
            return []
        return [
            f"the chat template of {self._model_id} writes the time of day before the document, so every run "
            "reads it anew and no index of it is found again"
        ]

    def _apply(
        self,
        turns: list[dict[str, str]],
        marks: Sequence[str] = (_DOCUMENT_MARK, _QUESTION_MARK),
        clock: datetime | None = None,
    ) -> str:
        try:
            rendered = self._rendered(turns, clock)
        except _TEMPLATE_FAULTS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(
                f"the chat template of {self._model_id} cannot be used for a document and a question "
                f"({reason[:200]}); choose another model, or correct the template in its folder"
            ) from error
        for mark in marks:
            if rendered.count(mark) != 1:
                raise UsageError(
                    f"the chat template of {self._model_id} does not show the user's message exactly once, "
                    "so a document cannot be placed in it; choose another model"
                )
        return rendered

    def _rendered(self, turns: list[dict[str, str]], clock: datetime | None = None) -> str:
        template, at = self._tokenizer.chat_template, clock or self._clock
        if isinstance(template, str):
            template = _CLOCK_CALL.sub(lambda call: repr(at.strftime(call[2])), template)
        else:
            template = None  # of several the library chooses
        rendered: str = self._tokenizer.apply_chat_template(
            turns, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        return rendered

    def _control(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids if text else []
        return ids

    def count(self, text: str) -> int:
        """Tokens of a text as a document."""
        return len(self._plain.encode(text))

    def token_starts(self, document: Document) -> list[int]:
        """The character at which each of a document's tokens in a prompt begins.

        Characters of its text as it was read; below 0 in the heading before it.
        """
        added = len(document.heading) + 1 if document.heading else 0
        return [start - added for start in self._plain.starts(document.text_with_heading)]

    def room_tokens(self) -> int:
        """Tokens of documents that leave room for the template, a question and an answer."""
        head, bridge, tail, _ = self._frame(None)
        frame = len(head) + len(bridge) + len(tail)
        return max(0, self._context_tokens - frame - self._reserve_tokens)

    @property
    def _reserve_tokens(self) -> int:
        """For a question and an answer, where a part is said to fit."""
        return min(RESERVE_TOKENS, self._context_tokens // 8)

    def _check_fit(
        self, documents: Sequence[Document], infos: tuple[DocumentInfo, ...], prompt_tokens: int
    ) -> None:
        if prompt_tokens < self._context_tokens:
            return
        largest = sorted(infos, key=lambda d: d.tokens or 0, reverse=True)[:5]
        listing = ", ".join(f"{d.source} {d.tokens:,}" for d in largest)
        subject = "the document" if len(infos) == 1 else f"the {len(infos)} documents (largest: {listing})"
        total = sum(d.tokens or 0 for d in infos)
        raise DoesNotFit(
            f"{subject} and the question make {prompt_tokens:,} tokens (documents {total:,}), but "
            f"{self._model_id} reads at most {self._context_tokens:,}; choose a model with a longer context "
            f"(`magicpig models ls`), {self._stretch(prompt_tokens)}or {self._smaller(documents)}"
        )

    def _stretch(self, prompt_tokens: int) -> str:
        """The option that lets the model read this far, if published models are stretched as far."""
        factor = prompt_tokens // self._context_tokens + 1
        if not self._stretchable or factor > _FARTHEST_STRETCH:
            return ""
        return f"stretch this one's positions with --rope yarn:{factor}, "

    def _smaller(self, documents: Sequence[Document]) -> str:
        """What of the documents would fit, and how to ask for it."""
        if len(documents) > 1:
            return "name fewer sources (`magicpig outline SOURCE` tells the tokens of each)"
        (document,) = documents
        room = self.room_tokens()
        sections = [part for part in document.parts if part.kind != "page"]
        fitting = [size for size in part_sizes(document, sections, self.count) if size.tokens <= room]
        source = "-" if document.source == STANDARD_INPUT else shlex.quote(document.source)
        if not fitting:
            paged = len(sections) < len(document.parts)
            option = "--pages A-B or --lines A:B" if paged else "--lines A:B"
            beginning = longest_beginning(document, self.token_starts(document), room)
            fits = "" if beginning is None else f"; {beginning} is as much as fits from its beginning"
            listed = f" (`magicpig outline {source}` lists its parts)" if document.parts else ""
            return f"read a part of it with {option}{fits}{listed}"
        named = ", ".join(f'"{size.part.title[:60]}" ({size.tokens:,})' for size in fitting[:3])
        more = f" and {len(fitting) - 3:,} more" if len(fitting) > 3 else ""
        fits = "this section fits" if len(fitting) == 1 else "these sections fit"
        return f"read a part of it with --section TITLE: {fits}: {named}{more} (`magicpig outline {source}`)"


class PlainTextEncoder:
    """Encodes text with no control token in the result, whatever markers the text spells out.

    The tokenizer's own option keeps *special* tokens as text, but not tokens that are added
    without being special; a copy of the tokenizer without any added token keeps both. Should
    the vocabulary itself still spell a marker as one token, the marker is cut in two.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    """

    def __init__(self, tokenizer: Any) -> None:
        self._control = {
            id_: token.content
            for id_, token in tokenizer.added_tokens_decoder.items()
            if token.content.strip()
        }
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        description["added_tokens"] = []
        description["post_processor"] = None
        description["truncation"] = description["padding"] = None
        self._backend = Tokenizer.from_str(json.dumps(description))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, none of them a control token."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        halves = self._halves(text, ids)
        if halves is not None:
            return [part for half in halves for part in self.encode(half)]
        return [part for i in ids for part in self._spelled(i)] if self._forged(ids) else ids

    def starts(self, text: str) -> list[int]:
        """The character of `text` at which each token of `encode(text)` begins."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        halves = self._halves(text, encoding.ids)
        if halves is not None:
            first, second = halves
            return [*self.starts(first), *(len(first) + start for start in self.starts(second))]
        located = zip(encoding.ids, encoding.offsets, strict=True)
        return [start for i, (start, _) in located for _ in self._spelled(i)]

    def _forged(self, ids: Sequence[int]) -> list[str]:
        """Texts of the control tokens among some ids, the longest first."""
        return sorted({self._control[i] for i in ids if i in self._control}, key=len, reverse=True)

    def _halves(self, text: str, ids: Sequence[int]) -> tuple[str, str] | None:
        """The text cut within a marker that became a control token; None if there is none to cut.

        A token's text may not stand in the document as such, but e.g. in a form that is normalised.
        """
        forged = self._forged(ids)
        at = text.find(forged[0]) if forged else -1
        return None if at < 0 else (text[: at + 1], text[at + 1 :])

    def _spelled(self, token_id: int) -> list[int]:
        """A token itself, or, of a control token, ids that spell its text."""
        if token_id not in self._control:
            return [token_id]
        pieces = (self._backend.encode(c, add_special_tokens=False).ids for c in self._control[token_id])
        return [i for ids in pieces for i in ids if i not in self._control]
