"""Threads are counted from what this process may use: its cores, and the quota of any group that it is in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magicpig_cli.engine import threads
from magicpig_cli.models import cgroups


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups in place of this machine's, which has eight cores."""
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


def version_2(folder: Path, quota: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(f"{quota} 100000\n")


def version_1(folder: Path, quota: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize(
    ("own", "quotas", "cores"),
    [
        ("0::/", {"": "100000"}, 1),  # a container sees its own group as the root
        ("0::/", {"": "max"}, 8),
        ("0::/", {}, 8),
        ("0::/a.slice/b.scope", {"a.slice/b.scope": "200000"}, 2),
        ("0::/a.slice/b.scope", {"a.slice": "150000", "a.slice/b.scope": "max"}, 2),
        ("0::/a.slice/b.scope", {"a.slice": "300000", "a.slice/b.scope": "50000"}, 1),
        ("0::/a.slice", {"another.slice": "100000"}, 8),
        ("0::/not/mounted/here", {"": "400000"}, 4),
    ],
)
def test_quotas_of_version_2(
    own: str, quotas: dict[str, str], cores: int, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_own_groups", lambda: [own])
    for name, quota in quotas.items():
        version_2(groups / name, quota)
    assert threads.available_cores() == cores


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(
    ("quotas", "cores"), [({"job": "100000"}, 1), ({"": "300000"}, 3), ({"job": "-1"}, 8), ({}, 8)]
)
def test_quotas_of_version_1(
    controllers: str, quotas: dict[str, str], cores: int, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["9:name=systemd:/", f"3:{controllers}:/job", "2:cpuset:/other", "0::/"]
    monkeypatch.setattr(cgroups, "_own_groups", lambda: lines)
    for name, quota in quotas.items():
        version_1(groups / "cpu" / name, quota)
    assert threads.available_cores() == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity masks")
def test_the_affinity_mask_counts() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert threads.available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
