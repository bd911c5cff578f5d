"""How `--help` reads: usage as people type it, whole sentences, options under headings.

The same text whatever release of typer lays it out, in pipes and pagers; docs/cli.md is made of it.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

# Under which heading an option stands; what is not named here stands under the last one.
_HEADINGS = {
    "Model and machine": (
        "--model", "--device", "--dtype", "--quantize", "--rope", "--threads", "--offline",
    ),
    "Document": ("--section", "--pages", "--lines", "--no-cache", "--show-text"),
    "Attention": (
        "--attention", "--bits", "--tables", "--collisions", "--dense-layers", "--budget", "--tolerance",
    ),
    "Answer": ("--max-tokens", "--temperature", "--top-p", "--seed", "--system", "--cite", "--markdown"),
}  # fmt: skip
_REST = "Other options"
# Fewer options than this are one list.
_MANY = 10


class Command(TyperCommand):
    """A command whose help shows its arguments first, then its options by subject."""

    def get_help(self, ctx: Any) -> str:
        return _without_trailing_blanks(super().get_help(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*(str(argument.metavar) for argument in _arguments(self)), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(str(a.metavar), str(a.help)) for a in _arguments(self) if a.help]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    """A group whose help shows the first sentence of each command's help, never a part of it."""

    def get_help(self, ctx: Any) -> str:
        return _without_trailing_blanks(super().get_help(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["COMMAND [ARGUMENTS] [OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        rows = [(str(c.name), _first_paragraph(c.help)) for c in commands if not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        _write_options(self, ctx, formatter)


def _without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "argument"]


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*_HEADINGS, _REST)}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx) if parameter.param_type_name == "option" else None
        if record is not None:
            rows[_heading(parameter.opts)].append(record)
    everything = [record for records in rows.values() for record in records]
    if len(everything) < _MANY:
        rows = {"Options": everything}
    for heading, records in rows.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


def _heading(names: list[str]) -> str:
    return next((heading for heading, known in _HEADINGS.items() if set(known) & set(names)), _REST)
