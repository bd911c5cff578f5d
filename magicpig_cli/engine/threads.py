"""How many cores this process may use, and one number for torch, BLAS and numba alike."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Cores that the affinity mask and a container's quota leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cgroup_cores() -> float | None:
    """The smallest CPU quota of this process's control groups and their parents, in cores, if any."""
    quotas = [quota for group in _cpu_groups() if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _own_groups() -> list[str]:
    """Lines of the form `number:controllers:path`."""
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _cpu_groups() -> list[Path]:
    """Folders of version 2 and 1. Inside a container its own group is often mounted as the root."""
    groups = [_CGROUPS, _CGROUPS / "cpu"]
    for line in _own_groups():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        own = root / path.lstrip("/")
        groups += [group for group in (own, *own.parents) if root in group.parents]
    return groups


def _quota(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", or -1: unlimited
    return int(quota) / int(period)


def use_threads(n_threads: int) -> None:
    """Let torch and numba use `n_threads` each; they never run at the same time."""
    import numba
    import torch

    torch.set_num_threads(n_threads)
    numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
