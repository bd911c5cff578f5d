"""Jupyter notebooks: prose as it is, code in fences, and what the code printed; headings as parts."""

from __future__ import annotations

import json
from typing import Any

from magicpig_cli.documents.decode import decode
from magicpig_cli.documents.parts import build_parts
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError
from magicpig_cli.documents.readers.markdown import heading_marks


class Notebook(Reader):
    """Cells of a notebook of format 3 or 4."""

    kind = "a notebook"
    suffixes = frozenset({".ipynb"})

    def recognises(self, data: bytes) -> bool:
        return data[:64].lstrip().startswith(b"{") and b'"nbformat"' in data and b'"cells"' in data

    def read(self, data: bytes) -> Text:
        """All cells in order, with the text of their outputs."""
        decoded = decode(data)
        try:
            notebook = json.loads(decoded.text)
            language = _language(notebook)
            cells = notebook["cells"] if "cells" in notebook else _old_cells(notebook)
            blocks: list[str] = []
            pictures = 0
            for cell in cells:
                texts, more = _cell(cell, language)
                blocks += texts
                pictures += more
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            raise UnreadableError(f"is a damaged notebook ({reason}); get it again") from None
        text = "\n\n".join(block.strip("\n") for block in blocks if block.strip())
        text = f"{text}\n" if text else ""
        remarks = list(decoded.remarks)
        if pictures:
            shown = "1 output that is" if pictures == 1 else f"{pictures:,} outputs that are"
            remarks.append(f"has {shown} no text (pictures, widgets); left out")
        return Text(text, decoded.encoding, build_parts(text, heading_marks(text)), tuple(remarks))


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata", {})
    named = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name")
    return str(named or "")


def _old_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]


def _cell(cell: dict[str, Any], language: str) -> tuple[list[str], int]:
    """Texts of a cell, and how many of its outputs are none."""
    kind = cell["cell_type"]
    source = _joined(cell.get("source", cell.get("input", "")))
    if kind == "heading":
        return ["#" * int(cell.get("level", 1)) + " " + source], 0
    if kind != "code":
        return [source], 0
    texts = [_fenced(source, language)] if source.strip() else []
    wordless = 0
    for output in cell.get("outputs", []):
        text = _output(output)
        if text is None:
            wordless += 1
        elif text.strip():
            texts.append(_fenced(text, ""))
    return texts, wordless


def _output(output: dict[str, Any]) -> str | None:
    if "traceback" in output:
        return f"{output.get('ename', 'Error')}: {output.get('evalue', '')}"
    data = output.get("data", output)
    text = output.get("text") or data.get("text/markdown") or data.get("text/plain") or data.get("text")
    is_picture = any(name.startswith(("image/", "application/vnd")) for name in data) or "png" in data
    if is_picture and output.get("output_type") != "stream":
        return None
    return _joined(text) if text is not None else None


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _fenced(code: str, language: str) -> str:
    fence = "```"
    while fence in code:
        fence += "`"
    body = code.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"
