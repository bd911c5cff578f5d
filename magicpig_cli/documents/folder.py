"""Which files of a folder are read, in which order, and what is left out and why.

Hidden entries, lock files of package managers and folders of installed packages are noise in a
prompt; they are left out and named, like everything else that is not read.
"""

from __future__ import annotations

import os
import stat

from magicpig_cli.errors import UsageError

_LOCK_FILES = {
    "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "poetry.lock",
    "uv.lock", "pdm.lock", "pipfile.lock", "cargo.lock", "composer.lock", "gemfile.lock",
    "go.sum", "flake.lock",
}  # fmt: skip
_PACKAGE_FOLDERS = {"node_modules", "__pycache__"}
# More than any model reads: system folders such as /proc have no end worth waiting for.
MOST_ENTRIES = 20_000
_DEEPEST = 100


class _TooManyError(Exception):
    """The folder holds more entries than are worth listing."""


def list_folder(folder: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Files below `folder`, sorted by name, and what was left out.

    Parameters
    ----------
    folder : str

    Returns
    -------
    files : list of str
        Paths that begin with `folder` as it was given.
    skipped : list of (str, str)
        Path and reason.

    Raises
    ------
    UsageError
        If the folder itself cannot be listed, or holds too much for a folder of documents.
    """
    files: list[str] = []
    skipped: list[tuple[str, str]] = []
    try:
        _walk(folder, {_identity(os.stat(folder))}, files, skipped)
    except _TooManyError:
        raise UsageError(
            f"the folder {folder} holds more than {MOST_ENTRIES:,} entries, far more than any model reads; "
            "name a folder below it that holds only documents, or the files themselves"
        ) from None
    return files, skipped


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _walk(folder: str, seen: set[tuple[int, int]], files: list[str], skipped: list[tuple[str, str]]) -> None:
    try:
        names = sorted(os.listdir(folder), key=lambda name: (name.casefold(), name))
    except OSError as error:
        cause = error.strerror or "unreadable"
        if len(seen) == 1 and not files and not skipped:
            raise UsageError(f"the folder {folder} cannot be listed: {cause}") from None
        skipped.append((folder, cause.lower()))
        return
    if len(files) + len(skipped) + len(seen) + len(names) > MOST_ENTRIES:
        raise _TooManyError
    for name in names:
        path = os.path.join(folder, name)
        reason = _reason_to_skip(name)
        if reason:
            skipped.append((path, reason))
            continue
        try:
            status = os.stat(path)
        except OSError as error:
            skipped.append((path, "broken link" if os.path.islink(path) else (error.strerror or "").lower()))
            continue
        if stat.S_ISREG(status.st_mode):
            # What a system tells in files of no size (/proc) has no end either.
            if status.st_size:
                files.append(path)
            else:
                skipped.append((path, "empty"))
        elif not stat.S_ISDIR(status.st_mode):
            skipped.append((path, "not a regular file"))
        elif path.count(os.sep) > _DEEPEST:
            skipped.append((path, "nested too deeply"))
        elif _identity(status) in seen:
            skipped.append((path, "link to a folder that is read already"))
        else:
            seen.add(_identity(status))
            _walk(path, seen, files, skipped)


def _reason_to_skip(name: str) -> str | None:
    if name.startswith("."):
        return "hidden"
    if name.lower() in _LOCK_FILES:
        return "lock file"
    if name in _PACKAGE_FOLDERS:
        return "installed packages"
    return None
