"""Measured memory of this process and its device, as an event."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

from magicpig_cli.attention.session import Session
from magicpig_cli.engine.events import Memory


def host_peak_bytes() -> int:
    """The most host memory that this process has held."""
    # Linux carries ru_maxrss through fork and exec: a command started by a large program would report that
    # program's peak. VmHWM belongs to the memory that exec made.
    for line in _status_lines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_lines() -> list[str]:
    try:
        return Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return []


def measure_memory(device: torch.device, session: Session, weight_bytes: int) -> Memory:
    """Bytes in use and at the peak, now."""
    on_gpu = device.type == "cuda"
    return Memory(
        host_bytes=psutil.Process().memory_info().rss,
        host_peak_bytes=host_peak_bytes(),
        host_total_bytes=psutil.virtual_memory().total,
        device_bytes=torch.cuda.memory_allocated(device) if on_gpu else None,
        device_peak_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        device_total_bytes=torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
        weight_bytes=weight_bytes,
        kv_bytes=session.kv_bytes,
        table_bytes=session.table_bytes,
        device_kv_bytes=session.device_kv_bytes,
    )
