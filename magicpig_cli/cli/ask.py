"""`magicpig ask`: one question about documents. Arguments in, wiring, exit status out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magicpig_cli.cli import options, values, wiring
from magicpig_cli.cli.help import Command
from magicpig_cli.errors import UsageError
from magicpig_cli.views.base import View
from magicpig_cli.views.choose import open_view
from magicpig_cli.views.streams import Messages, Output, Standard

if TYPE_CHECKING:
    from magicpig_cli.documents import PartRequest

EXAMPLES = """\b
Examples:
  magicpig ask book.txt "Who hides the letter?"
  cat report.md | magicpig ask - "List every deadline." > deadlines.txt
  magicpig ask a.txt b.txt notes/ "Where do they disagree?"
  magicpig ask book.txt "Summarize." --json | jq -r .answer
  magicpig ask book.txt "Summarize." -m llama-3.2-1b -n 200
  magicpig ask report.pdf "Which deadlines are set?" --pages 10-42
\b
Exit status: 0 answered, 1 failed, 2 asked wrongly, 3 does not fit,
130 interrupted, 141 the reader of standard output went away."""


class AskCommand(Command):
    """`ask` with its arguments named as people give them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["SOURCE... QUESTION", "[OPTIONS]"]


ShowTextOption = Annotated[
    bool,
    typer.Option("--show-text", help="Print the text as the model would read it, and stop."),
]


def ask(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE... QUESTION",
            hidden=True,  # the usage line names them
        ),
    ] = None,
    model: options.ModelOption = "auto",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    quantize: options.QuantizeOption = "none",
    rope: options.RopeOption = None,
    attention: options.AttentionOption = "lsh",
    bits: options.BitsOption = None,
    tables: options.TablesOption = None,
    collisions: options.CollisionsOption = None,
    dense_layers: options.DenseLayersOption = None,
    budget: options.BudgetOption = None,
    tolerance: options.ToleranceOption = None,
    max_tokens: options.MaxTokensOption = 512,
    temperature: options.TemperatureOption = 0.0,
    top_p: options.TopPOption = 1.0,
    seed: options.SeedOption = None,
    system: options.SystemOption = None,
    section: options.SectionOption = None,
    pages: options.PagesOption = None,
    lines: options.LinesOption = None,
    threads: options.ThreadsOption = None,
    no_cache: options.NoCacheOption = False,
    offline: options.OfflineOption = False,
    show_text: ShowTextOption = False,
    cite: options.CiteOption = False,
    markdown: options.MarkdownOption = False,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Answer one question about the sources.

    SOURCE is a file (text, PDF, EPUB, Word, HTML, notebook, subtitles), a folder (its files, sorted),
    or - for standard input. Several sources are read in the order given, with a line between two that
    names both. QUESTION comes last.

    The document is read exactly; only the answer is generated with sampled attention, so that
    documents far longer than the GPU's memory can be asked. The answer, and nothing else, goes to
    standard output as it is generated; progress goes to standard error.
    """
    engine_options = options.EngineOptions(
        model,
        device,
        dtype,
        attention,
        bits,
        tables,
        dense_layers,
        threads,
        offline,
        cache=not no_cache,
        budget=budget,
        tolerance=tolerance,
        quantize=quantize,
        rope=rope,
        collisions=collisions,
    ).checked()
    passages = options.passages(cite, silent=quiet and not as_json)
    answer_options = options.AnswerOptions(max_tokens, temperature, top_p, seed, system, passages).checked()
    if show_text and as_json:
        raise UsageError("--show-text prints text and --json an object; leave one of them out")
    if markdown and as_json:
        raise UsageError("--markdown shows the answer to people and --json to scripts; leave one of them out")
    sources, question = split_arguments(arguments or [], needs_question=not show_text)
    if answer_options.system is not None:
        values.plain_text("--system", answer_options.system)
    part = options.part_request(section, pages, lines)
    with wiring.own_streams(context, verbose, offline) as standard:
        if show_text:
            return _show_text(sources, part, standard, quiet)

        def view_of(output: Output, messages: Messages) -> View:
            return open_view(output, messages, quiet, as_json, markdown=markdown, chatter=verbose)

        def work(watch: wiring.Watch) -> None:
            documents = wiring.read_documents(sources, part, standard, watch.view)
            watch.signals.check()
            with wiring.loaded_engine(engine_options, watch.show) as engine:
                request = options.ask_request(documents, question, answer_options)
                watch.show_all(engine.generate(request))

        return wiring.watched(standard, view_of, work, verbose)


def split_arguments(arguments: Sequence[str], needs_question: bool) -> tuple[list[str], str]:
    """Sources and question.

    Raises
    ------
    UsageError
        If one of them is missing, or the question is no text.
    """
    example = 'magicpig ask book.txt "Who hides the letter?"'
    if not arguments:
        raise UsageError(f"the document and the question are missing; for example: {example}")
    *sources, last = arguments
    last_is_source = last == "-" or os.path.exists(last)
    if not needs_question:
        return ([*sources, last], "") if last_is_source or not sources else (sources, "")
    if last_is_source:
        what = "standard input" if last == "-" else f"a {'folder' if os.path.isdir(last) else 'file'}"
        raise UsageError(f"the question is missing: the last argument, {last}, is {what}; add it: {example}")
    if not sources:
        raise UsageError(
            f"the document is missing: there is only {_shortened(last)}, which is no file; "
            f"name it before the question: {example}"
        )
    question = values.plain_text("the question", last)
    if not question.strip():
        raise UsageError('the question is empty; give one, such as "Summarize chapter 3."')
    return sources, question


def _shortened(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def _show_text(sources: Sequence[str], part: PartRequest | None, standard: Standard, quiet: bool) -> int:
    from magicpig_cli.documents import read_sources

    output, messages = Output(standard.streams.out), Messages(standard.streams.err)
    documents = read_sources(sources, sys.stdin.buffer if standard.stdin_open else None, part)
    for document in documents:
        for notice in () if quiet else document.notices:
            messages.line(f"magicpig: {notice}")
        text = document.text_with_heading
        # A newline that the model does not read is added only where a shell's prompt would follow.
        is_last = document is documents[-1]
        needs_end = is_last and output.stream.is_terminal and not text.endswith("\n")
        output.write(f"{text}\n" if needs_end else text)
    return 0
