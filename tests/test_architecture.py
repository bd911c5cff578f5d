"""The shape of the package: layers, sizes of files, and what the command line may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = find_spec("magicpig_cli")
assert SPEC is not None
assert SPEC.origin is not None
PACKAGE = Path(SPEC.origin).parent
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "transformers", "numba", "scipy", "accelerate")
MAX_LINES = 450


def test_imports_point_downwards():
    """The contracts of pyproject.toml, by import-linter."""
    lint = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    result = subprocess.run(
        [sys.executable, "-c", lint], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_is_short_and_says_what_it_is_for(file):
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{file} has no module docstring"


@pytest.mark.parametrize("module", ["magicpig_cli.cli.app", "magicpig_cli.__main__", "magicpig_cli"])
def test_command_line_imports_nothing_heavy(module):
    """`--help` and a mistyped option must answer before torch would even have been found."""
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize("file", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda file: file.name)
def test_no_command_imports_a_heavy_module_at_its_top(file):
    """Also where no test imports the module: the import statements themselves, outside functions."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = [name for node in tree.body for name in _imported(node)]
    assert not [name for name in named if name.split(".")[0] in HEAVY]


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def test_no_file_names_a_machine():
    """Tracked text must make sense on any machine: no absolute paths of a developer's."""
    folders = ("magicpig_cli", "tests", "docs", "samples", "scripts", "benchmarks", ".ci")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.is_file()]
    files += [f for f in ROOT.iterdir() if f.suffix in {".md", ".toml"}]
    text_files = [f for f in files if f.suffix in {".py", ".md", ".toml", ".json", ".svg", ""}]
    needles = ["/" + "work/", "/" + "root/", "/" + "home/"]
    found = [
        f"{f.relative_to(ROOT)}: {needle}"
        for f in text_files
        if "__pycache__" not in f.parts
        for needle in needles
        if needle in f.read_text(encoding="utf-8", errors="replace")
    ]
    assert not found


def test_test_files_have_names_of_their_own():
    # pytest imports them by base name, so two of one name end the whole run at collection.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
