"""How many cores this process may use, and one number for torch, BLAS and numba alike."""

from __future__ import annotations

import math
import os
from pathlib import Path

from magicpig_cli.models.cgroups import control_groups, root_groups


def available_cores() -> int:
    """Cores that the affinity mask and a container's quota leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cgroup_cores() -> float | None:
    """The smallest CPU quota of this process's control groups and their parents, in cores, if any."""
    groups = {*root_groups("cpu"), *control_groups("cpu")}
    quotas = (_quota(group, version) for group, version in groups)
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path, version: int) -> float | None:
    try:
        if version == 2:
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
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
