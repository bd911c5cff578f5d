"""A child that fetches: what is reported of the bytes that arrive."""

from __future__ import annotations

import sys
from pathlib import Path

from magicpig_cli.models.children import run_watched


def test_the_last_bytes_are_reported_however_soon_the_child_ends(tmp_path: Path) -> None:
    """It writes and is gone before anybody looks again."""
    target = tmp_path / "arrived"
    code = f"open({str(target)!r}, 'wb').write(bytes(70_000))"
    reported: list[int] = []
    result = run_watched([sys.executable, "-S", "-c", code], [tmp_path], reported.append, {})
    assert result.status == 0
    assert reported[-1] == 70_000
    assert reported == sorted(set(reported))
