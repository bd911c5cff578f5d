"""The `magicpig` command: its sub-commands, and the one way in and out.

A command is added by one line below `app`. Modules of commands import nothing heavy, so that
help and refusals answer at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from magicpig_cli import __version__
from magicpig_cli.cli import cache, exits, models
from magicpig_cli.cli.ask import EXAMPLES as ASK_EXAMPLES
from magicpig_cli.cli.ask import AskCommand, ask
from magicpig_cli.cli.bench import EXAMPLES as BENCH_EXAMPLES
from magicpig_cli.cli.bench import bench
from magicpig_cli.cli.chat import EXAMPLES as CHAT_EXAMPLES
from magicpig_cli.cli.chat import chat
from magicpig_cli.cli.doctor import EXAMPLES as DOCTOR_EXAMPLES
from magicpig_cli.cli.doctor import doctor
from magicpig_cli.cli.evaluate import EXAMPLES as EVAL_EXAMPLES
from magicpig_cli.cli.evaluate import evaluate
from magicpig_cli.cli.help import Command, Group
from magicpig_cli.cli.index import EXAMPLES as INDEX_EXAMPLES
from magicpig_cli.cli.index import index
from magicpig_cli.cli.outline import EXAMPLES as OUTLINE_EXAMPLES
from magicpig_cli.cli.outline import outline
from magicpig_cli.errors import UsageError
from magicpig_cli.views.streams import claim_standard

_EPILOG = """\b
Examples:
  magicpig ask book.txt "Who hides the letter?"
  cat report.md | magicpig ask - "List every deadline." > deadlines.txt
  magicpig chat book.txt
  magicpig doctor --model llama-3.1-8b --ctx 96000
`magicpig COMMAND --help` tells more about a command.
\b
Streams: the answer goes to standard output, everything else to standard error.
\b
Exit status: 0 answered, 1 failed on the way, 2 asked wrongly, 3 does not fit,
130 interrupted, 141 the reader of standard output went away.
\b
Environment:
  MAGICPIG_MODEL        the model, where --model names none
  MAGICPIG_NO_CACHE     as --no-cache, where it is 1
  MAGICPIG_CACHE        folder of models and indexes
  MAGICPIG_CACHE_LIMIT  the most that indexes may take, such as 20GB
  NO_COLOR              no colours on the terminal
\b
Shell completion, for bash, zsh and fish:
  magicpig --install-completion"""


class _Commands(Group):
    """Commands, with a helping hand for those who forget to say `ask`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        first = args[0]
        if first not in self.commands and (first == "-" or os.path.exists(first)):
            raise UsageError(f"{first} is no command; to ask about it: magicpig ask {first} QUESTION")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="magicpig",
    cls=_Commands,
    help="Ask questions of documents far longer than your GPU can hold.",
    epilog=_EPILOG,
    rich_markup_mode=None,  # plain help: readable at any width, in pipes and pagers
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app, name="models")
app.command(cls=AskCommand, epilog=ASK_EXAMPLES)(ask)
app.command(cls=Command, epilog=CHAT_EXAMPLES)(chat)
app.command(cls=Command, epilog=INDEX_EXAMPLES)(index)
app.add_typer(cache.app, name="cache")
app.command(cls=Command, epilog=BENCH_EXAMPLES)(bench)
app.command("eval", cls=Command, epilog=EVAL_EXAMPLES)(evaluate)
app.command(cls=Command, epilog=OUTLINE_EXAMPLES)(outline)
app.command(cls=Command, epilog=DOCTOR_EXAMPLES)(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"magicpig {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and end the process with its exit status."""
    standard = claim_standard()
    arguments = sys.argv[1:]
    command = typer.main.get_command(app)
    if callable(signal.getsignal(signal.SIGINT)):  # not where a parent ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if "_MAGICPIG_COMPLETE" in os.environ:
            app(prog_name="magicpig")
        if not arguments:
            raise UsageError("a command is missing, such as ask; see `magicpig --help`")
        width = min(max(shutil.get_terminal_size().columns - 1, 20), 100)
        with command.make_context("magicpig", list(arguments), obj=standard, terminal_width=width) as context:
            status = command.invoke(context) or 0
    except BaseException as error:
        status = exits.report(error, standard.streams, *_wishes(arguments))
    exits.leave(status)


def _wishes(arguments: list[str]) -> tuple[bool, bool]:
    """Whether `--verbose` and `--json` were asked for, when options could not be parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return bool({"--verbose", "-v"} & set(options)), "--json" in options
