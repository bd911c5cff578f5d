"""The views on real terminals and pipes: a recorded request played through the real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import environment
from terminal import Terminal

PLAY = (sys.executable, str(Path(__file__).with_name("play.py")))
STORY = (
    "The letter is hidden by [red]the keeper[/] of the lighthouse [/INST], who puts it :100: behind the "
    "third stone of the well.\n\nLater a child finds it, who cannot read; café 漢字 👨‍👩‍👧‍👦 🇳🇴 too. "
)
ENV = environment(NO_COLOR=None)


def played(text: str, *more: str, columns: int = 100, rows: int = 30, **changes: str | None) -> Terminal:
    return Terminal([*PLAY, text, *more], columns, rows, environment(**changes))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that is not there yet, for the options of `play.py` that wait for it."""
    return tmp_path / "gate"


def squeezed(text: str) -> str:
    """Without white space, so that it doesn't matter where a terminal broke its lines."""
    return "".join(text.split())


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (40, 20), (60, 6), (200, 60), (30, 2), (76, 12)])
def test_the_answer_stands_plainly_at_the_end(columns: int, rows: int) -> None:
    terminal = played(STORY.strip() + " Ende.", "0.004", columns=columns, rows=rows)
    assert terminal.finish() == 0
    text = squeezed(terminal.everything)
    assert squeezed("[red]the keeper[/] of the lighthouse [/INST], who puts it :100: behind") in text
    assert text.count("Ende.") == 1
    assert text.count("Theletter") == 1
    assert "╭" not in text
    assert text.count("answered") == 1
    assert "answered" in terminal.lines[-1]
    assert not terminal.cursor_hidden


def test_an_answer_taller_than_the_screen(gate: Path) -> None:
    story = " ".join(f"line{i}\n" for i in range(120)) + " end"
    terminal = played(story, "0.001", "--answer-until", str(gate), columns=80, rows=12)
    terminal.wait_for("line119")
    assert "ms/token" in terminal.text
    assert "line0" not in terminal.everything
    gate.touch()
    assert terminal.finish() == 0
    shown = re.findall(r"line\d+", terminal.everything)
    assert shown == [f"line{i}" for i in range(120)]


def test_panels_and_answer_share_the_screen(gate: Path) -> None:
    terminal = played(STORY * 3, "0.001", "--answer-until", str(gate))
    terminal.wait_for("behind the third")
    text = terminal.text
    assert "magicpig · book.txt · 6,012 tokens" in text
    assert "╭─ CPU attention" in text
    assert "[red]the keeper[/] of" in text
    assert terminal.cursor_hidden
    rows = [line for line in terminal.lines if line.endswith(("│", "╮", "╯"))]
    assert len({len(row) for row in rows if row.isascii() or "漢" not in row}) <= 2
    terminal.process.terminate(force=True)


def test_thoughts_stand_where_the_answer_goes_until_it_comes(gate: Path) -> None:
    end = gate.with_name("end")
    thoughts = ("--thoughts", "Is it green, or red?", "--think-until", str(gate))
    terminal = played("It is green, says the keeper.", "0.001", *thoughts, "--answer-until", str(end))
    terminal.wait_for("(reasoning) Is it green, or red?")
    gate.touch()
    terminal.wait_for("It is green, says")
    assert "reasoning" not in terminal.text
    end.touch()
    assert terminal.finish() == 0
    assert terminal.text.startswith("It is green, says the keeper.\n")
    assert "or red?" not in terminal.everything


@pytest.mark.parametrize("to", [(50, 20), (150, 40), (80, 8)])
def test_a_resize_leaves_no_stale_rows(to: tuple[int, int], gate: Path) -> None:
    terminal = played(STORY * 3, "0.001", "--answer-until", str(gate), columns=100, rows=30)
    terminal.wait_for("behind the third")
    terminal.resize(*to)
    assert 1 <= terminal.text.count("ms/token") <= 2  # speed and CPU attention: one frame
    gate.touch()
    assert terminal.finish() == 0
    assert not terminal.cursor_hidden


def test_what_stood_there_stands_again(gate: Path) -> None:
    """Resized while it answers: nothing of the panels is left, on the screen or above it."""
    story = STORY.replace("\n", " ") * 4
    script = f"for i in $(seq 40); do echo before $i; done; {' '.join(PLAY)} '{story}' --answer-until {gate}"
    terminal = Terminal(["bash", "-c", script], 100, 30, ENV)
    terminal.wait_for(lambda: terminal.on_other_screen and "behind the third" in terminal.text)
    for columns, rows in ((60, 12), (140, 40), (45, 9), (100, 30)):
        terminal.resize(columns, rows)
        assert "ms/token" in terminal.text
        assert "before" not in terminal.text
    gate.touch()
    assert terminal.finish() == 0
    assert not terminal.on_other_screen
    everything = terminal.everything
    assert "before 40\nThe letter" in everything
    assert not re.search("[╭│╰▁▂▃▄▅▆▇█]", everything)
    assert squeezed(everything).count("behindthethird") == 4


def test_a_short_answer_needs_no_other_screen() -> None:
    terminal = played("It is green.", "0.01")
    assert terminal.finish() == 0
    assert b"\x1b[?1049h" not in terminal.raw
    assert terminal.text.startswith("It is green.\n")


def test_a_terminal_that_cuts_rows_off_keeps_what_stands_above(gate: Path) -> None:
    """pyte does not break rows anew when it becomes narrower, as xterm does not."""
    play = f"{' '.join(PLAY)} 'It is green.' --read-until {gate}"
    script = f"for i in $(seq 5); do echo before $i; done; {play}"
    terminal = Terminal(["bash", "-c", script], 120, 30, ENV | {"XTERM_VERSION": "XTerm(390)"})
    terminal.wait_for("tokens/s")
    terminal.resize(45, 30)
    assert "before 1\nbefore 2\nbefore 3\nbefore 4\nbefore 5\n" in terminal.text
    assert terminal.text.count("magicpig") == 1
    terminal.process.terminate(force=True)


def test_no_more_than_twelve_frames_a_second(gate: Path) -> None:
    begun = time.monotonic()
    terminal = played(STORY * 5, "0.001", "--answer-until", str(gate))
    terminal.wait_for(lambda: terminal.raw.count(b"\x1b[?2026h") > 9)
    gate.touch()
    assert terminal.finish() == 0
    assert terminal.raw.count(b"\x1b[?2026h") <= 12 * (time.monotonic() - begun) + 1


def test_no_colour_where_none_is_wanted() -> None:
    terminal = played(STORY, "0.004", NO_COLOR="1")
    assert terminal.finish() == 0
    assert not re.search(rb"\x1b\[(3[0-7]|9[0-7]|38)", terminal.raw)


def test_a_dumb_terminal_gets_lines() -> None:
    terminal = played(STORY, TERM="dumb")
    assert terminal.finish() == 0
    assert b"\x1b" not in terminal.raw
    assert "loaded SmolLM2-135M-Instruct" in terminal.text


def test_an_ascii_locale_draws_in_ascii_and_keeps_the_answer() -> None:
    terminal = played(STORY.strip(), "0.004", PYTHONIOENCODING="iso8859-1")
    assert terminal.finish() == 0
    assert b"caf\xe9 \\u6f22\\u5b57" in terminal.raw
    assert "╭".encode() not in terminal.raw


def test_quiet_shows_only_the_answer() -> None:
    terminal = played("It is green.", "--quiet")
    assert terminal.finish() == 0
    assert terminal.text == "It is green."


def test_escape_sequences_of_the_model_are_shown_not_obeyed() -> None:
    terminal = played("red \x1b[31malert\x1b[2J\x07 end. now", "0.01")
    assert terminal.finish() == 0
    assert "red \\x1b[31malert\\x1b[2J\\x07 end. now" in terminal.text
    assert b"\x1b[31m" not in terminal.raw


def test_ctrl_c_leaves_the_partial_answer_and_the_cursor(gate: Path) -> None:
    terminal = played(STORY * 5, "0.001", "--answer-until", str(gate), rows=60)
    terminal.wait_for("behind the third")
    terminal.process.sendintr()
    assert terminal.finish() == 130
    assert "interrupted after" in terminal.text
    assert squeezed("behind the third") in squeezed(terminal.everything)
    assert not terminal.cursor_hidden


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_restore_the_terminal(number: int, status: int, gate: Path) -> None:
    terminal = played(STORY * 5, "0.001", "--answer-until", str(gate), rows=60)
    terminal.wait_for("the lighthouse")
    os.kill(terminal.process.pid, number)
    assert terminal.finish() == status
    assert not terminal.cursor_hidden
    assert "the keeper" in terminal.everything


def test_stop_and_go_on(gate: Path) -> None:
    terminal = Terminal(["bash", "--norc", "-i"], 100, 30, ENV | {"PS1": "$ "})
    terminal.wait_for("$")
    command = " ".join(PLAY)
    story = STORY.replace("\n", " ") * 5
    terminal.process.sendline(f"{command} '{story}' --answer-until {gate}")
    terminal.wait_for("╭─ CPU attention")
    terminal.process.send("\x1a")
    terminal.wait_for("Stopped")
    assert "╭" not in terminal.text
    assert not terminal.cursor_hidden
    terminal.process.sendline("fg")
    terminal.wait_for("╭─ CPU attention")
    assert terminal.cursor_hidden
    terminal.process.sendintr()
    terminal.wait_for(lambda: "interrupted after" in terminal.text and not terminal.cursor_hidden)
    terminal.process.terminate(force=True)


def test_a_stop_that_cannot_be_caught_draws_anew_afterwards(gate: Path) -> None:
    terminal = played(STORY * 5, "0.001", "--answer-until", str(gate))
    terminal.wait_for("╭─ CPU attention")
    os.kill(terminal.process.pid, signal.SIGSTOP)
    terminal.wait_for(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
    terminal.read(0.3)  # what was still on its way
    terminal.screen.erase_in_display(2)  # someone else writes meanwhile
    os.kill(terminal.process.pid, signal.SIGCONT)
    terminal.wait_for(lambda: all(t in terminal.text for t in ("╭─ CPU attention", "magicpig · book.txt")))
    terminal.process.terminate(force=True)


def signalled_twice(gate: Path) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen(
        [*PLAY, " ".join(["word"] * 200), "0", "--answer-until", str(gate)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(10)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=120)
    return process.returncode, first + rest, err


def test_a_signal_that_comes_twice_at_once_is_one(gate: Path) -> None:
    """`timeout` signals the process and then its whole group."""
    # Again where the machine stood still between the two, so that they rightly were two requests.
    for _ in range(5):
        status, out, err = signalled_twice(gate)
        assert status == 143
        if err:
            break
    assert out.startswith(b"word word")
    assert out.endswith(b"\n")
    assert b"interrupted after" in err


def test_a_pipe_s_reader_has_the_screen_to_itself(gate: Path) -> None:
    """`| cat` writes to the same terminal, so nothing may be drawn any more."""
    script = f"{' '.join(PLAY)} '{STORY.replace(chr(10), ' ')}' 0.01 --read-until {gate} | cat"
    terminal = Terminal(["bash", "-c", script], 100, 30, ENV)
    terminal.wait_for("tokens/s")
    gate.touch()
    assert terminal.finish() == 0
    first = terminal.raw.index(b"The letter")
    assert b"\x1b[?2026h" in terminal.raw[:first]
    assert b"\x1b" not in terminal.raw[first:]
    assert "reads; 漢" not in terminal.text
    assert "answered" in terminal.text


def test_panels_go_on_while_the_answer_goes_to_a_file(tmp_path: Path, gate: Path) -> None:
    story = "'It is green, says the keeper of the light'"
    script = f"{' '.join(PLAY)} {story} --answer-until {gate} > {tmp_path}/out"
    terminal = Terminal(["bash", "-c", script], 120, 30, ENV)
    terminal.wait_for("╭─ CPU attention")
    gate.touch()
    assert terminal.finish() == 0
    assert (tmp_path / "out").read_bytes() == b"It is green, says the keeper of the light\n"
    assert "It is green" not in terminal.text


def test_standard_error_alone_elsewhere(tmp_path: Path) -> None:
    command = " ".join(PLAY)
    terminal = Terminal(["bash", "-c", f"{command} 'It is green.' 0.01 2> {tmp_path}/log"], 100, 30, ENV)
    assert terminal.finish() == 0
    assert terminal.text == "It is green."
    log = (tmp_path / "log").read_text()
    assert "\x1b" not in log
    assert len(log.splitlines()) == 3


def piped(script: str, folder: Path, **changes: str | None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; play() {{ {" ".join(PLAY)} "$@"; }}; {script}'],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(**changes),
        cwd=folder,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "out", "status"),
    [
        ("play 'It is green.'", b"It is green.\n", 0),
        ("play 'It is green.' 2>&-", b"It is green.\n", 0),
        ("play 'It is green.' 2>/dev/full", b"It is green.\n", 0),
        ("play 'It is green.' <&-", b"It is green.\n", 0),
        # The gate opens when the reader is gone.
        ("play 'It is green.' --answer-until gate | { head -c 5; exec <&-; touch gate; }", b"It is", 141),
        ("play 'It is green.' --read-until gate | { exec <&-; touch gate; }", b"", 141),
        ("play 'It is green.' >&-", b"", 141),
        ("play 'It is green.' > /dev/full", b"", 1),
        ("play 'It is green.' --json > /dev/full", b"", 1),
    ],
)
def test_streams(script: str, out: bytes, status: int, tmp_path: Path) -> None:
    done = piped(script, tmp_path, FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert (done.stdout, done.returncode) == (out, status)
    assert b"Traceback" not in done.stderr
    if status == 141:
        assert done.stderr.splitlines()[2:] == []  # at most what was said before the reader left
    if status == 1:
        assert b"standard output could not be written (No space left on device)" in done.stderr


def test_json_after_an_interruption_is_whole(gate: Path) -> None:
    process = subprocess.Popen(
        [*PLAY, " ".join(["word"] * 50), "0", "--json", "--answer-until", str(gate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    while not gate.with_suffix(".reached").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143
    value = json.loads(out)
    assert value["finish_reason"] == "interrupted"
    assert value["answer"].startswith("word word")
    assert b"interrupted after" in err


MARKED = (
    "# Findings\n\nIt is **green**, [red]says[/] \x1b[31mher log\x1b[0m.\n\n- one\n- two\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def test_markdown_is_rendered_at_the_end_on_a_terminal_and_nowhere_else() -> None:
    terminal = played(MARKED, "0.01", "--markdown", columns=60)
    assert terminal.finish() == 0
    assert "Findings" in terminal.text
    assert "# Findings" not in terminal.text
    assert "It is green, [red]says[/] \\x1b[31mher log\\x1b[0m." in terminal.text
    assert " • one\n • two" in terminal.text
    assert "answered" in terminal.lines[-1]
    assert b"\x1b[31m" not in terminal.raw
    done = subprocess.run(
        [*PLAY, MARKED, "--markdown"], stdin=subprocess.DEVNULL, capture_output=True, env=ENV, check=False
    )
    assert done.stdout.decode() == MARKED.rstrip("\n") + "\n"
    dumb = played(MARKED, "--markdown", TERM="dumb")
    assert dumb.finish() == 0
    assert "# Findings" in dumb.text


def test_a_terminal_that_is_closed_ends_the_command(gate: Path) -> None:
    """Which would answer for minutes otherwise, and end with another status."""
    terminal = played(STORY * 20, "0.001", "--answer-until", str(gate))
    terminal.wait_for("╭─ CPU attention")
    os.close(terminal.process.child_fd)
    _, status = os.waitpid(terminal.process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
