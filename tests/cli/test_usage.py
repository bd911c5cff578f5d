"""What is asked wrongly is refused in one sentence with status 2, before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from command import environment, one_sentence, shell
from warm import NONE
from warm import magicpig as warm_magicpig

magicpig = partial(warm_magicpig, imports=NONE)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("The crane in the harbour of Vardal is green.\n")
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bits", "0"], "--bits is 0, but must be between 1 and 16"),
        (["--bits", "17"], "--bits is 17"),
        (["--bits", "many"], "'many' is not a whole number"),
        (["--bits"], "requires an argument"),
        (["--tables", "1"], "--tables is 1, but must be between 2"),
        (["--top-p", "0"], "--top-p is 0.0, but must be above 0 and at most 1"),
        (["--top-p", "1.5"], "--top-p is 1.5"),
        (["--top-p", "nan"], "--top-p is nan"),
        (["--temperature", "-0.1"], "--temperature is -0.1, but must be 0 or more"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--temperature", "inf"], "--temperature is inf"),
        (["--temperature", "0,8"], "'0,8' is not a number"),
        (["--max-tokens", "0"], "--max-tokens is 0, but must be at least 1"),
        (["-n", "-3"], "--max-tokens is -3"),
        (["-n", "1e3"], "'1e3' is not a whole number"),
        (["--seed", "-1"], "--seed is -1"),
        (["--seed", "99999999999999999999"], "--seed is 99,999"),
        (["--threads", "0"], "--threads is 0"),
        (["--dense-layers", "0;16"], "layer numbers such as 0,16"),
        (["--dense-layers", ""], "layer numbers such as 0,16"),
        (["--device", "gpu"], "--device is 'gpu', but must be auto, cpu, cuda or cuda:N"),
        (["--dtype", "bfloat"], "did you mean bfloat16?"),
        (["--attention", "lhs"], "did you mean lsh?"),
        (["--attention", "xyz"], "choose one of lsh, dense"),
        (["--attention", "dense", "--bits", "8"], "--bits belongs to --attention lsh"),
        (["--attention", "quest", "--tables", "80"], "--tables belongs to --attention lsh"),
        (["--budget", "0.1"], "--attention lsh reads what --bits and --tables make it"),
        (["--attention", "quest", "--budget", "1.5"], "--budget is 1.5, but must be a share"),
        (["--tolerance", "0"], "--tolerance is 0, but must be above 0"),
        (["--tolerance", "nan"], "--tolerance is nan"),
        (["--attention", "quest", "--tolerance", "0.1"], "--attention quest does not; leave it out"),
        (["--attention", "vattention", "--budget", "0.1", "--tolerance", "0.1"], "leave one of them out"),
        (["--atention", "lsh"], "there is no option --atention; did you mean --attention?"),
        (["--model", ""], "--model is empty"),
        (["--show-text", "--json"], "leave one of them out"),
    ],
)
def test_an_option_out_of_range(book: Path, options: list[str], said: str) -> None:
    result = magicpig("ask", str(book), "What colour?", *options)
    assert result.status == 2
    assert said in result.err
    assert one_sentence(result.err)
    if "--json" in options:
        assert "leave one of them out" in json.loads(result.out)["error"]["message"]
    else:
        assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the document and the question are missing"),
        (["BOOK"], "the question is missing: the last argument, BOOK, is a file"),
        (["-"], "the question is missing: the last argument, -, is standard input"),
        (["BOOK", "BOOK"], "the question is missing"),
        ([".", "."], "is a folder"),
        (["What colour is the crane?"], "the document is missing"),
        (["BOOK", ""], "the question is empty"),
        (["BOOK", " \n\t"], "the question is empty"),
        (["absent.txt", "What colour?"], "absent.txt"),
    ],
)
def test_a_missing_part(book: Path, arguments: list[str], said: str) -> None:
    given = [str(book) if a == "BOOK" else a for a in arguments]
    result = magicpig("ask", *given)
    assert result.status == 2
    assert said.replace("BOOK", str(book)) in result.err
    assert one_sentence(result.err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["aks", "x", "y"], "Did you mean 'ask'"),
        ([], "a command is missing"),
        (["book.txt", "What?"], "to ask about it: magicpig ask book.txt QUESTION"),
        (["--nosuch"], "there is no option --nosuch"),
    ],
)
def test_no_such_command(book: Path, arguments: list[str], said: str) -> None:
    result = magicpig(*arguments, cwd=book.parent)
    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert one_sentence(result.err)


def test_a_question_that_is_no_text(book: Path) -> None:
    command = [sys.executable, "-m", "magicpig_cli", "ask", str(book), b"caf\xe9?"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert done.returncode == 2
    assert b"the question is not valid UTF-8" in done.stderr


def test_refusals_with_json_are_an_object_too(book: Path) -> None:
    result = magicpig("ask", str(book), "What?", "--json", "--nosuch")
    value = json.loads(result.out)
    assert result.status == 2
    assert value["error"]["kind"] == "usage"
    assert "--nosuch" in value["error"]["message"]
    assert value["answer"] is None


def test_version() -> None:
    from magicpig_cli import __version__

    result = magicpig("--version")
    assert (result.status, result.out, result.err) == (0, f"magicpig {__version__}\n", "")


def test_standard_error_closed_keeps_the_status(book: Path) -> None:
    assert shell(f"magicpig ask {book} 'What?' --bits 0 2>&-").status == 2
    assert shell(f"magicpig ask {book} 'What?' --bits 0 2>/dev/full").status == 2


def test_show_text_prints_what_the_model_would_read(book: Path) -> None:
    book.write_bytes(b"\xef\xbb\xbfThe gate opens at 6:40.\r\nNot before.\r\n")
    result = magicpig("ask", str(book), "--show-text")
    assert (result.status, result.out, result.err) == (0, "The gate opens at 6:40.\nNot before.\n", "")
