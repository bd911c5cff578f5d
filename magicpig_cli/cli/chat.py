"""`magicpig chat`: many questions about documents that are read once. Arguments in, exit status out."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magicpig_cli.cli import exits, options, values, wiring
from magicpig_cli.cli.chatter import set_up_libraries
from magicpig_cli.cli.prompting import Questions, choose_questions
from magicpig_cli.cli.signals import Requests
from magicpig_cli.errors import UsageError
from magicpig_cli.views.base import Ending, View
from magicpig_cli.views.chatview import HELP, WELCOME, Exchange, NoAnswer, statistics, transcript
from magicpig_cli.views.choose import open_view
from magicpig_cli.views.streams import Messages, Output, ReaderGone, Standard, private
from magicpig_cli.views.text import harmless

if TYPE_CHECKING:
    from magicpig_cli.documents import PartRequest
    from magicpig_cli.engine.conversation import Conversation
    from magicpig_cli.views.track import Track

EXAMPLES = """\b
Examples:
  magicpig chat book.txt
  magicpig chat report.pdf --pages 10-42
  magicpig chat book.txt < questions.txt > answers.txt
\b
In a pipe: questions on standard input, one per line; answers on standard output,
separated by a blank line. The exit status is that of the first question that failed."""

# A path such as /etc/hosts at the beginning of a question is no command.
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?")


def chat(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Files or folders.")],
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
    cite: options.CiteOption = False,
    markdown: options.MarkdownOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = False,
) -> int:
    """Keep asking about the sources; they are read once.

    Each question comes with those before it and their answers. Ctrl-C stops an answer, Ctrl-D leaves;
    /help tells the commands.
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
    passages = options.passages(cite, silent=quiet)
    answer_options = options.AnswerOptions(max_tokens, temperature, top_p, seed, system, passages).checked()
    if answer_options.system is not None:
        values.plain_text("--system", answer_options.system)
    part = options.part_request(section, pages, lines)
    if "-" in sources:
        raise UsageError("standard input brings the questions of a chat, so no document; name a file instead")
    outer: Standard = context.obj
    if outer.streams.out.fd is None:
        raise ReaderGone
    questions = choose_questions(outer)
    set_up_libraries(verbose, offline)
    with private(outer.streams, keep_chatter=verbose) as own, ExitStack() as stack:
        standard = Standard(own, outer.stdin_open)
        talk = _Talk(standard, quiet, verbose, markdown)
        status = talk.read(sources, part, engine_options, answer_options, stack)
        if status:
            return status
        return talk.go_on(questions(standard))


class _Talk:
    """One chat: its streams, its conversation, and what was said."""

    def __init__(self, standard: Standard, quiet: bool, verbose: bool, markdown: bool) -> None:
        self._standard = standard
        self._messages = Messages(standard.streams.err)
        self._output = Output(standard.streams.out)
        self._quiet = quiet
        self._verbose = verbose
        self._markdown = markdown
        self._exchanges: list[Exchange] = []
        self._status = 0
        self._reading: Track | None = None
        self._conversation: Conversation | None = None

    def read(
        self,
        sources: list[str],
        part: PartRequest | None,
        engine_options: options.EngineOptions,
        answer_options: options.AnswerOptions,
        stack: ExitStack,
    ) -> int:
        """Load the model and read the documents; the engine lives as long as `stack`."""

        def work(watch: wiring.Watch) -> None:
            from magicpig_cli.engine.conversation import Conversation

            documents = wiring.read_documents(sources, part, self._standard, watch.view)
            watch.signals.check()
            self._reading = watch.view.track
            engine = stack.enter_context(wiring.loaded_engine(engine_options, watch.show))
            watch.show_all(engine.read(documents, answer_options.system))
            # The question is set turn by turn.
            self._conversation = Conversation(engine, options.ask_request(documents, "", answer_options))

        return wiring.watched(self._standard, self._view_of_reading, work, self._verbose)

    def _view_of_reading(self, output: Output, messages: Messages) -> View:
        return open_view(output, messages, self._quiet, False, NoAnswer(), chatter=self._verbose)

    def go_on(self, questions: Questions) -> int:
        """Take questions until there are no more, and give the exit status."""
        if questions.interactive and not self._quiet:
            self._messages.line(WELCOME)
        try:
            for line in self._lines(questions):
                command = _COMMAND.fullmatch(line)
                if command:
                    if command[1] == "quit":
                        break
                    self._obey(command[1], (command[2] or "").strip())
                    continue
                ended = self._answer(line)
                if ended is not None:
                    return ended
        except ReaderGone:
            return exits.READER_GONE
        except KeyboardInterrupt as error:
            return exits.ending_of(error).status
        return 0 if questions.interactive else self._status

    def _lines(self, questions: Questions) -> Iterator[str]:
        """What was typed, without the blank lines."""
        while True:
            line = questions.next()
            if line is None:
                return
            if line.strip():
                yield line.strip()

    def _answer(self, question: str) -> int | None:
        """Answer one question before the eyes of a view of its own; a status if that ends the chat."""
        reading, conversation = self._reading, self._conversation
        if reading is None or conversation is None:
            raise RuntimeError("nothing has been read yet")
        if self._exchanges and not self._output.stream.is_terminal:
            self._output.write("\n")
        stop = Requests()
        output = Output(self._standard.streams.out, give_up=lambda: stop.requested is not None)
        # Below what was said before, which a person wants to see while reading on.
        view = open_view(
            output,
            self._messages,
            self._quiet,
            False,
            markdown=self._markdown,
            long_answers="below",
            chatter=self._verbose,
        )
        view.track.loaded, view.track.read_s = reading.loaded, reading.read_s
        ending = exits.ANSWERED
        # Ctrl-C is noticed between two tokens, so that the conversation stays in order.
        with stop:
            stop.guard_terminal(view.terminal_fd, view.suspend, view.resume)
            try:
                with closing(conversation.ask(question)) as events:
                    for event in events:
                        with stop.showing():
                            view.show(event)
                        if not output.stream.has_reader:
                            raise ReaderGone
                        if stop.requested is not None:
                            ending = Ending(stop.exit_status, interrupted=True)
                            break
            except Exception as error:
                ending = exits.ending_of(error)
                if self._verbose and ending.failure:
                    view.clear()
                    exits.print_traceback(error, self._messages)
            with stop.showing():
                status = exits.finish(view, ending, self._messages)
        if ending.failure is None:
            self._exchanges.append(Exchange(question, view.track))
        else:
            self._status = self._status or ending.status
        if status == exits.READER_GONE:
            return status
        return None if stop.requested in (None, signal.SIGINT) else stop.exit_status

    def _obey(self, command: str, argument: str) -> None:
        """One of the commands of `/help`."""
        if self._reading is None or self._conversation is None:
            raise RuntimeError("nothing has been read yet")
        match command:
            case "help":
                self._say(HELP)
            case "stats":
                self._say(statistics(self._reading, self._exchanges))
            case "reset":
                self._conversation.reset()
                self._say("the questions so far are forgotten; the document stays read")
            case "save":
                self._save(argument)
            case _:
                self._fail(f"there is no command /{command}; /help tells those there are")

    def _save(self, name: str) -> None:
        if not name:
            self._fail("/save needs the name of a new file: /save answers.md")
            return
        assert self._reading is not None
        path, shown = Path(os.path.expanduser(name)), harmless(name)
        try:
            with path.open("x", encoding="utf-8") as file:
                try:
                    file.write(transcript(self._reading, self._exchanges))
                    file.flush()
                except OSError:  # half of it under that name would look like all, and refuse the next try
                    path.unlink(missing_ok=True)
                    raise
        except FileExistsError:
            self._fail(f"{shown} exists already and was left as it is; choose another name")
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._fail(f"{shown} cannot be written: {reason.lower()}")
        else:
            self._say(f"saved {len(self._exchanges)} questions and answers in {shown}")

    def _say(self, text: str) -> None:
        if not self._quiet or text == HELP:
            for line in text.splitlines():
                self._messages.line(line)

    def _fail(self, sentence: str) -> None:
        self._messages.line(f"magicpig: {sentence}")
        self._status = self._status or UsageError.exit_status
