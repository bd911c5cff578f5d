"""Events become figures."""

from __future__ import annotations

import pytest
from recorded import CPU, DOCUMENT, LSH, MODEL, decoding, loading, prefilling, request

from magicpig_cli.engine.events import (
    Event,
    Finished,
    Loaded,
    ModelInfo,
    Prefilled,
    PrefillProgress,
    Prompted,
    Step,
    Token,
)
from magicpig_cli.views.plain import prefilled_line, summary_line
from magicpig_cli.views.track import RECENT_STEPS, Track


def folded(events: list[Event]) -> tuple[Track, str]:
    track = Track()
    return track, "".join(track.fold(event) for event in events)


def test_pieces_are_the_answer() -> None:
    track, streamed = folded(list(request(["The ", "crane", " is"], " green.")))
    assert streamed == track.answer == "The crane is green."
    assert track.phase == "done"
    assert track.generated_tokens == 3


@pytest.mark.parametrize(
    ("pieces", "tail", "answer"),
    [
        (["a\n", "\n", "b"], "\n\n", "a\n\nb"),
        (["a", "\n"], "", "a"),
        (["\n", "\n"], "", ""),
        (["\n", "x"], "\n", "\nx"),
        ([" a ", ""], " \n", " a  "),
        ([], "", ""),
    ],
)
def test_the_answer_never_ends_in_a_newline(pieces: list[str], tail: str, answer: str) -> None:
    track, streamed = folded(list(decoding(pieces, tail)))
    assert streamed == track.answer == answer


def test_time_left_follows_the_work_not_the_tokens() -> None:
    """Half of the tokens of a quadratic prefill are a quarter of its work."""
    track = Track()
    track.fold(PrefillProgress(0, 1, 500, 1000, 0.25, 10.0))
    assert track.prefill_left_s() == pytest.approx(30.0)
    assert track.prefill_left_s(since_event_s=4.0) == pytest.approx(26.0)
    assert track.prefill_left_s(since_event_s=99.0) == 0.0


def test_no_time_left_before_anything_is_known() -> None:
    track = Track()
    track.fold(PrefillProgress(0, 30, 512, 96_000, 0.0001, 0.1))
    assert track.prefill_left_s() is None


def test_means_look_back_a_while_and_end_with_the_engines() -> None:
    track = Track()
    for i in range(3 * RECENT_STEPS):
        track.fold(Step(i, 100.0 if i < 2 * RECENT_STEPS else 10.0, 4.0, 1.0, 3.0, 0.05, 0.02))
    assert track.step_ms == pytest.approx(10.0)
    assert track.attention_share == pytest.approx(0.4)
    assert track.sampled_share == pytest.approx(0.05)
    assert track.estimated_error == pytest.approx(0.02)
    track.fold(Finished("stop", "", 180, 1.0, 70.0, 4.0, 0.06, 0.03, None))
    assert (track.step_ms, track.sampled_share, track.estimated_error) == (70.0, 0.06, 0.03)


def test_what_a_tolerance_made_exact_is_told_and_without_one_nothing_is() -> None:
    track, _ = folded(list(request(["a"])))
    assert track.exact_share is None
    assert "more keys" not in summary_line(track)
    track = Track()
    for share in (0.1, 0.3):
        track.fold(Step(0, 10.0, 4.0, 1.0, 3.0, 0.05, 0.02, share, 2 * share))
    assert track.exact_share == pytest.approx(0.2)
    assert track.resampled_share == pytest.approx(0.4)
    track.fold(Finished("stop", "", 2, 1.0, 70.0, 4.0, 0.06, 0.03, None, 0.25, 0.5))
    assert (track.exact_share, track.resampled_share) == (0.25, 0.5)
    assert summary_line(track).endswith("estimated error 3.0 %, more keys for 50 % of heads, all for 25 %")


def test_methods_that_do_not_sample_have_no_share() -> None:
    track = Track()
    track.fold(Step(0, 10.0, 0.0, 0.0, 0.0, None, None))
    assert track.sampled_share is None
    assert track.estimated_error is None


def test_a_cut_answer_names_the_option() -> None:
    track, _ = folded([*loading(), *prefilling(), *decoding(["a"] * 8, reason="length")])
    assert track.cut_short is not None
    assert "--max-tokens" in track.cut_short
    assert "8 tokens" in track.cut_short


def test_a_full_context_is_not_blamed_on_the_option() -> None:
    small = ModelInfo("m", "A", 1, "bfloat16", "none", 105, 1)
    track, _ = folded(
        [
            Loaded(small, CPU, 1.0),
            Prompted((DOCUMENT,), 90, 100, 0, LSH),
            *decoding(["a"] * 5, reason="length"),
        ]
    )
    assert track.cut_short is not None
    assert "context of 105 tokens is full" in track.cut_short


def test_a_whole_answer_is_not_cut() -> None:
    track, _ = folded(list(request(["a"])))
    assert track.cut_short is None
    assert track.loaded is not None
    assert track.loaded.model is MODEL


def test_empty_pieces_keep_line_ends_held() -> None:
    track = Track()
    assert [track.fold(Token(i, i, t)) for i, t in enumerate(["a\n", "", "b"])] == ["a", "", "\nb"]


def test_what_was_held_back_belongs_to_an_answer_that_is_cut() -> None:
    track = Track()
    assert track.fold(Token(0, 1, "The code is 447", "1")) == "The code is 447"
    assert track.cut() == "1"
    assert track.answer == "The code is 4471"
    assert track.cut() == ""


def test_nothing_is_added_to_an_answer_that_is_finished() -> None:
    track, streamed = folded([*request(["a", "b"], "c")])
    assert track.cut() == ""
    assert track.answer == streamed == "abc"


@pytest.mark.parametrize(
    ("reused", "path", "line"),
    [
        (0, None, "read 6,041 tokens in 2.0 s (3,020 tokens/s); keys and values 139 MB"),
        (
            6012,
            "/i",
            "read 6,041 tokens, 6,012 of them from the index, "
            "29 in 2.0 s (14 tokens/s); keys and values 139 MB",
        ),
        (
            6012,
            None,
            "read 6,041 tokens, 6,012 of them from memory, 29 in 2.0 s (14 tokens/s); keys and values 139 MB",
        ),
        (6041, "/i", "read 6,041 tokens, all of them from the index; keys and values 139 MB"),
    ],
)
def test_the_line_of_reading_tells_what_was_known(reused: int, path: str | None, line: str) -> None:
    """A speed over tokens that were known would be none: "0 tokens/s" for an index that holds them all."""
    prefilled = Prefilled(6041, 6041 - reused, 2.0, 0.0, 139_000_000, 0)
    track, _ = folded([Prompted((DOCUMENT,), 6012, 6041, reused, LSH, path), prefilled])
    assert prefilled_line(prefilled, track) == line
