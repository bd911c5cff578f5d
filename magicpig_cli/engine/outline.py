"""The parts of documents with their tokens, and which of them a model can read: `magicpig outline`.

Needs a model's tokenizer and the length of its context, no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magicpig_cli.documents import Document
from magicpig_cli.engine.prompt import PromptBuilder
from magicpig_cli.engine.sizes import PartSize, longest_beginning, part_sizes
from magicpig_cli.errors import DamagedFile
from magicpig_cli.models.sources import resolve
from magicpig_cli.models.survey import shape_of_model_folder


@dataclass(frozen=True, slots=True)
class DocumentOutline:
    """A document, its parts and their sizes.

    Attributes
    ----------
    document : Document
    tokens : int
        Of the whole.
    lines : int
    sizes : tuple of PartSize
        Sections in the order of the text, then pages.
    beginning : str or None
        The option that reads as much of it as fits from its first line; None where all of it fits, or
        nothing.
    """

    document: Document
    tokens: int
    lines: int
    sizes: tuple[PartSize, ...]
    beginning: str | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What documents hold, measured with a model's tokenizer.

    Attributes
    ----------
    model_id : str
    context_tokens : int
        What the model reads at most, prompt and answer together.
    room_tokens : int
        What of it is left for documents, beside the template, a question and an answer.
    documents : tuple of DocumentOutline
    """

    model_id: str
    context_tokens: int
    room_tokens: int
    documents: tuple[DocumentOutline, ...]

    @property
    def tokens(self) -> int:
        """Of all documents, with the headings that tell several from one another."""
        return sum(document.tokens for document in self.documents)

    @property
    def fits(self) -> bool:
        """Whether all of it can be read at once."""
        return self.tokens <= self.room_tokens


def outline(
    documents: Sequence[Document],
    model: str,
    *,
    offline: bool,
    device_kind: str,
    progress: Callable[[str, int, int | None], None],
    notice: Callable[[str], None],
) -> Outline:
    """Measure documents with the tokenizer of a model, which is fetched if need be and not loaded.

    Parameters
    ----------
    documents : sequence of Document
    model, offline, device_kind, progress, notice
        As `models.sources.resolve` takes them.

    Raises
    ------
    UsageError, ModelUnavailable, DamagedFile
    """
    from transformers import AutoTokenizer

    source = resolve(model, offline=offline, device_kind=device_kind, progress=progress, notice=notice)
    context = shape_of_model_folder(source.folder, source.id).context_tokens
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedFile(f"the tokenizer of {source.id} cannot be loaded: {reason}") from error
    prompts = PromptBuilder(tokenizer, source.id, context)
    outlines = tuple(_outlined(document, prompts) for document in documents)
    return Outline(source.id, context, prompts.room_tokens(), outlines)


def _outlined(document: Document, prompts: PromptBuilder) -> DocumentOutline:
    lines = document.text.count("\n") + (not document.text.endswith("\n"))
    sizes = part_sizes(document, document.parts, prompts.count)
    tokens, room = prompts.count(document.text_with_heading), prompts.room_tokens()
    beginning = None
    if tokens > room:
        beginning = longest_beginning(document, prompts.token_starts(document), room)
    return DocumentOutline(document, tokens, lines, sizes, beginning)
