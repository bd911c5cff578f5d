"""What was finished, kept in a file of JSON lines, so that an evaluation goes on where it was interrupted.

The first line says what is being evaluated; each further line is one sample of one contender.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from magicpig_cli.errors import UsageError


class Record:
    """Finished items in memory and, if a file is named, on disk.

    Parameters
    ----------
    path : Path or None
    settings : dict
        Whatever decides the numbers; items of other settings are refused.

    Raises
    ------
    UsageError
        If the file holds something else, or cannot be read or written.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path = path
        self.items: list[dict[str, Any]] = []
        self._done: set[tuple[Any, ...]] = set()
        if path is None:
            return
        try:
            if path.exists() and path.stat().st_size:
                self._load(path, settings)
            else:
                self._append({"settings": settings})
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"--out {path} cannot be used: {reason}; name another file") from error

    def has(
        self, task: str, sample: int, method: str, budget: float | None, tolerance: float | None = None
    ) -> bool:
        """Whether this item was finished."""
        return (task, sample, method, budget, tolerance) in self._done

    def add(self, item: dict[str, Any]) -> None:
        """Keep an item: `task`, `sample`, `method`, `budget`, `tolerance` and what was measured."""
        self._remember(item)
        if self._path is not None:
            self._append(item)

    def _remember(self, item: dict[str, Any]) -> None:
        self.items.append(item)
        name = (item["task"], item["sample"], item["method"], item["budget"], item.get("tolerance"))
        self._done.add(name)

    def _append(self, value: dict[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def _load(self, path: Path, settings: dict[str, Any]) -> None:
        data = path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in complete.decode().splitlines()]
            known = lines[0]["settings"]
            for item in lines[1:]:
                self._remember(item)
        except (ValueError, LookupError, TypeError):
            raise UsageError(
                f"{path} holds no results of magicpig eval; name another file with --out"
            ) from None
        # As it would come back from the file.
        wanted = json.loads(json.dumps(settings))
        other = [
            f"{key} {known.get(key)!r}, not {wanted[key]!r}"
            for key in wanted
            if known.get(key) != wanted[key]
        ]
        if other:
            raise UsageError(f"{path} holds results with {'; '.join(other)}; name another file with --out")
        if len(complete) < len(data):  # a line that an interruption cut
            with path.open("r+b") as file:
                file.truncate(len(complete))
