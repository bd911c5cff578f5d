"""Control groups of Linux: where a container's or a service's limits stand. Elsewhere there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of this process's groups of a controller, such as `memory`, and of their parents.

    Yields
    ------
    (Path, int)
        A folder, which need not exist, and the version of control groups that its files follow, 2 or 1.
    """
    for line in _own_groups():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root, version = (_ROOT / controller, 1) if controllers else (_ROOT, 2)
        own = root / path.lstrip("/")
        # Inside a container its own group is often mounted as the root.
        for group in (own, *own.parents):
            if group == root or root in group.parents:
                yield group, version


def root_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Those that a container sees as its own, whatever the system says of this process."""
    yield _ROOT, 2
    yield _ROOT / controller, 1


def _own_groups() -> list[str]:
    """Lines of the form `number:controllers:path`."""
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
