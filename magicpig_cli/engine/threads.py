"""How many cores this process may use, and one number for torch, BLAS and numba alike."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_MAX = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_CGROUP_V1_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def available_cores() -> int:
    """Cores that the affinity mask and a container's quota leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cgroup_cores() -> float | None:
    """The CPU quota of the control group in cores, None where there is none."""
    try:
        quota, period = _CGROUP_MAX.read_text().split()
    except (OSError, ValueError):
        try:
            quota = _CGROUP_V1_QUOTA.read_text().strip()
            period = _CGROUP_V1_PERIOD.read_text().strip()
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
