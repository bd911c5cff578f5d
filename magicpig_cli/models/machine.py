"""What this machine has: cores, instruction sets, memory that a process may really use, devices, versions."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from magicpig_cli import __version__
from magicpig_cli.models.cgroups import control_groups
from magicpig_cli.models.plan import Room

# Files of a control group of memory by version: the limit, and what counts against it.
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
# Instruction sets that change which code runs: numba's vectors, torch's matrix kernels.
_NOTABLE = (
    "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16",
    "avx512fp16", "amx-tile", "amx-bf16", "neon", "fullfp16", "bf16", "sve", "sve2",
)  # fmt: skip
_PACKAGES = ("torch", "transformers", "numba", "numpy")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    name: str
    kind: str
    bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in all and bytes that this process may still take."""

    total_bytes: int
    free_bytes: int


def cpu_name() -> str:
    """As the system calls it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Those of `_NOTABLE` that the compiler of the kernels finds."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return [name for name in _NOTABLE if features.get(name)]


def host_memory() -> HostMemory:
    """Memory of the machine, or of the container or limit that this process is in."""
    system = psutil.virtual_memory()
    total, free = system.total, system.available
    for limit, used in [*_cgroup_limits(), *_address_limit()]:
        total, free = min(total, limit), min(free, max(0, limit - used))
    return HostMemory(total, free)


def resident_bytes() -> int:
    """What this process holds already; a plan's total includes it."""
    return int(psutil.Process().memory_info().rss)


def room(device_index: int | None) -> Room:
    """Memory for a whole plan: what is free, and what this process holds already.

    Parameters
    ----------
    device_index : int or None
        A CUDA device; None where the model computes on the CPU. Imports torch if given.
    """
    host = host_memory().free_bytes + resident_bytes()
    if device_index is None:
        return Room(host)
    import torch

    free, _ = torch.cuda.mem_get_info(device_index)
    return Room(host, int(free) + torch.cuda.memory_reserved(device_index))


def devices() -> list[Device]:
    """CUDA devices that torch sees; imports torch."""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(Device(torch.cuda.get_device_name(index), "cuda", int(total), int(free)))
    return found


def versions() -> dict[str, str | None]:
    """Versions of this program, Python and the libraries that compute; None where CUDA is missing."""
    import torch

    found: dict[str, str | None] = {
        "magicpig": __version__,
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    found["cuda"] = torch.version.cuda
    found["system"] = platform.platform()
    return found


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, links not followed; 0 where there is none."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


def _address_limit() -> list[tuple[int, int]]:
    """`ulimit -v`, as (limit, used)."""
    if sys.platform == "win32":
        return []
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return []
    return [(soft, int(psutil.Process().memory_info().vms))]


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) of this process's control groups of memory and their parents, version 2 and 1."""
    limits = []
    for group, version in control_groups("memory"):
        limit, used = (_number(group / name) for name in _MEMORY_FILES[version])
        if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for none
            limits.append((limit, max(0, (used or 0) - _reclaimable(group))))
    return limits


def _reclaimable(group: Path) -> int:
    """File pages in the group's account that the kernel gives up when memory is needed."""
    try:
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    stat = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    files = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return int(files) if files.isdigit() else 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
