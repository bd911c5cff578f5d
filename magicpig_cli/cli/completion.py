"""What the shell offers after `TAB`: names that an option takes. File names are the shell's own business.

Each function is called with the word as it stands, in a process of its own, so nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offers those of `names` that begin like the word."""
    choices = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in choices if name.startswith(incomplete)]

    return complete


def listed(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offers `names` for the last part of a list such as `lsh,quest`; none twice."""
    choices = tuple(names)

    def complete(incomplete: str) -> list[str]:
        *before, last = incomplete.split(",")
        lead = "".join(f"{part}," for part in before)
        return [lead + name for name in choices if name.startswith(last) and name not in before]

    return complete


def model_names(incomplete: str) -> list[str]:
    """Aliases of `magicpig models ls`; what begins none of them may be a file, for the shell to complete."""
    from magicpig_cli.models.catalog import CATALOG

    return among(entry.name for entry in CATALOG)(incomplete)


def kept_documents(incomplete: str) -> list[str]:
    """Keys and documents of `magicpig cache ls`."""
    from magicpig_cli.cli.cache import kept_names

    return among(kept_names())(incomplete)
