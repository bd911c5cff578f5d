"""`magicpig outline`: the parts of documents, their tokens, and what fits. Arguments in, exit status out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli import __version__
from magicpig_cli.cli import exits, options, wiring
from magicpig_cli.cli.models import Progress
from magicpig_cli.cli.signals import Signals
from magicpig_cli.views.streams import Messages, Output, ReaderGone
from magicpig_cli.views.text import count, harmless

if TYPE_CHECKING:
    from magicpig_cli.engine.outline import DocumentOutline, Outline
    from magicpig_cli.engine.sizes import PartSize

EXAMPLES = """\b
Examples:
  magicpig outline book.epub
  magicpig outline report.pdf --model llama-3.1-8b
  magicpig outline book.txt --json | jq '.documents[].parts[] | select(.fits) | .title'
\b
A part is then asked for by its title, number, pages or lines:
  magicpig ask book.epub "Who hides the letter?" --section "Chapter 3"
  magicpig ask report.pdf "Which deadlines are set?" --pages 10-42"""

_TITLE_COLUMNS = 60


def outline(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, folders, or - for standard input.")
    ],
    model: options.ModelOption = "auto",
    offline: options.OfflineOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """List the parts that a document has, their tokens, and which of them the model can read.

    Parts are headings, chapters, bookmarks, functions and classes, and pages, by the kind of
    document. Tokens are the model's own; the model itself is not loaded.
    """
    with wiring.own_streams(context, verbose, offline) as standard, Signals() as signals:
        messages = Messages(standard.streams.err)
        progress = Progress(messages, quiet)
        try:
            result = _measured(sources, model, offline, standard.stdin_open, progress)
        finally:
            progress.clear()
        signals.check()
        text = json.dumps(as_object(result)) + "\n" if as_json else "".join(table(result))
        try:
            Output(standard.streams.out).write(text)
        except ReaderGone:
            return exits.READER_GONE
    return 0


def _measured(
    sources: Sequence[str], model: str, offline: bool, stdin_open: bool, progress: Progress
) -> Outline:
    from magicpig_cli.documents import read_sources

    documents = read_sources(sources, sys.stdin.buffer if stdin_open else None)
    for document in documents:
        for notice in document.notices:
            progress.notice(notice)
    from magicpig_cli.engine.outline import outline as measure
    from magicpig_cli.models.load import choose_device

    return measure(
        documents,
        model,
        offline=offline,
        device_kind=choose_device("auto").type,
        progress=progress.show,
        notice=progress.notice,
    )


def as_object(result: Outline) -> dict[str, Any]:
    """The object of `outline --json`."""
    return {
        "version": __version__,
        "model": {"id": result.model_id, "context_tokens": result.context_tokens},
        "room_tokens": result.room_tokens,
        "tokens": result.tokens,
        "fits": result.fits,
        "documents": [_document_object(document, result.room_tokens) for document in result.documents],
    }


def _document_object(outlined: DocumentOutline, room_tokens: int) -> dict[str, Any]:
    document = outlined.document
    return {
        "source": document.source,
        "encoding": document.encoding,
        "characters": len(document.text),
        "tokens": outlined.tokens,
        "lines": outlined.lines,
        "fits": outlined.tokens <= room_tokens,
        "parts": [
            {
                "number": number,
                "title": size.part.title,
                "kind": size.part.kind,
                "level": size.part.level,
                "start": size.part.start,
                "end": size.part.end,
                "first_line": size.part.first_line,
                "last_line": size.part.last_line,
                "first_page": size.part.first_page,
                "last_page": size.part.last_page,
                "tokens": size.tokens,
                "fits": size.tokens <= room_tokens,
            }
            for sizes in _split(outlined)
            for number, size in enumerate(sizes, 1)
        ],
    }


def _split(outlined: DocumentOutline) -> tuple[list[PartSize], list[PartSize]]:
    """Sections and pages."""
    sections = [size for size in outlined.sizes if size.part.kind != "page"]
    return sections, [size for size in outlined.sizes if size.part.kind == "page"]


def table(result: Outline) -> list[str]:
    """Lines for people."""
    room = result.room_tokens
    lines = []
    for outlined in result.documents:
        lines += _document_lines(outlined, room)
        lines.append("\n")
    if len(result.documents) == 1:
        verdict = "the whole fits" if result.fits else "the whole does not fit"
    else:
        verdict = (
            f"all {len(result.documents):,} together, {result.tokens:,} tokens, "
            f"{'fit' if result.fits else 'do not fit'}"
        )
    lines.append(
        f"{result.model_id} reads {result.context_tokens:,} tokens, of which {room:,} are left for documents "
        f"beside a question and an answer: {verdict}.\n"
    )
    return lines


def _document_lines(outlined: DocumentOutline, room: int) -> list[str]:
    sections, pages = _split(outlined)
    figures = [count(outlined.tokens, "token"), count(outlined.lines, "line")]
    if pages:
        figures.append(count(len(pages), "page"))
    if sections:
        fitting = sum(size.tokens <= room for size in sections)
        figures.append(f"{count(len(sections), 'section')}, {fitting:,} of them fit")
    lines = [f"{harmless(outlined.document.source)}: {', '.join(figures)}\n"]
    if not sections and not pages:
        return [*lines, "  no parts were found; --lines A:B reads some of it\n", *_as_much(outlined)]
    lines += _rows(sections or pages, room, bool(sections))
    if sections and pages:
        fewest, most = min(s.tokens for s in pages), max(s.tokens for s in pages)
        lines.append(f"  pages 1-{len(pages):,}: {fewest:,} to {most:,} tokens each (--json lists them)\n")
    if not any(size.tokens <= room for size in sections):
        lines += _as_much(outlined)
    return lines


def _as_much(outlined: DocumentOutline) -> list[str]:
    """What to begin with where no part fits."""
    if outlined.beginning is None:
        return []
    return [f"  {outlined.beginning} is as much as fits from its beginning\n"]


def _rows(sizes: Sequence[PartSize], room: int, numbered: bool) -> list[str]:
    places = [_place(size) for size in sizes]
    head = (
        "#" if numbered else "",
        "TOKENS",
        "PAGES" if sizes[0].part.first_page else "LINES",
        "FITS",
        "PART",
    )
    cells = [
        (
            str(number) if numbered else "",
            f"{size.tokens:,}",
            place,
            "yes" if size.tokens <= room else "no",
            "  " * (size.part.level - 1) + _shortened(harmless(size.part.title)),
        )
        for number, (size, place) in enumerate(zip(sizes, places, strict=True), 1)
    ]
    widths = [max(len(row[column]) for row in [head, *cells]) for column in range(4)]
    return [
        "  "
        + "  ".join(
            [
                row[0].rjust(widths[0]),
                row[1].rjust(widths[1]),
                row[2].ljust(widths[2]),
                row[3].ljust(widths[3]),
                row[4],
            ]
        ).rstrip()
        + "\n"
        for row in [head, *cells]
    ]


def _place(size: PartSize) -> str:
    part = size.part
    if part.first_page is not None:
        return (
            f"{part.first_page}"
            if part.first_page == part.last_page
            else f"{part.first_page}-{part.last_page}"
        )
    return f"{part.first_line}:{part.last_line}"


def _shortened(title: str) -> str:
    return title if len(title) <= _TITLE_COLUMNS else title[: _TITLE_COLUMNS - 1] + "\u2026"
