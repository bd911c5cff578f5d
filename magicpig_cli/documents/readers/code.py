"""Source code: the text as it is, with its functions and classes as parts.

Python is parsed; of other languages, declarations that start a line are found by their words.
"""

from __future__ import annotations

import ast
import re
import warnings

from magicpig_cli.documents.decode import decode
from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.base import Reader, Text

_DECLARATION = re.compile(
    r"^(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([^)]*\))?|"
    r"unsafe|extern|const|open|data|sealed|override|partial|inline)\s+)*"
    r"(?P<word>function\*?|class|interface|struct|enum|trait|impl(?:<[^>]*>)?|fn|func|fun|def|module|mod|"
    r"namespace|type|object|record|protocol|extension|sub|macro_rules!)\s+"
    r"(?:\([^)]*\)\s*)?(?P<name>[A-Za-z_$][\w$:.]*)",
    re.MULTILINE,
)


class SourceCode(Reader):
    """Python by its grammar."""

    kind = "source code"
    suffixes = frozenset({".py", ".pyi"})

    def read(self, data: bytes) -> Text:
        """The text, unchanged; a file that does not parse has no parts."""
        decoded = decode(data)
        text = decoded.text
        return Text(text, decoded.encoding, build_parts(text, python_marks(text)), decoded.remarks)


class OtherSourceCode(Reader):
    """Languages whose declarations stand at the start of a line, behind a word."""

    kind = "source code"
    suffixes = frozenset(
        {
            ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".java", ".kt", ".kts", ".scala", ".go", ".rs",
            ".rb", ".php", ".swift", ".cs", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".pl", ".pm",
            ".jl", ".lua", ".dart",
        }
    )  # fmt: skip

    def read(self, data: bytes) -> Text:
        """The text, unchanged."""
        decoded = decode(data)
        text = decoded.text
        marks = [
            Mark(f"{match['word']} {match['name']}", 1, match.start(), "definition")
            for match in _DECLARATION.finditer(text)
        ]
        return Text(text, decoded.encoding, build_parts(text, marks), decoded.remarks)


def python_marks(text: str) -> list[Mark]:
    """Classes and functions, with decorators, nested ones below theirs; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, which are the file's own business
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return list(_definitions(tree, 1, starts, ""))


def _definitions(node: ast.AST, level: int, starts: list[int], owner: str) -> list[Mark]:
    marks = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            word = "class" if isinstance(child, ast.ClassDef) else "def"
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            marks.append(Mark(f"{word} {owner}{child.name}", level, starts[first - 1], "definition"))
            if isinstance(child, ast.ClassDef):
                marks += _definitions(child, level + 1, starts, f"{owner}{child.name}.")
    return marks
