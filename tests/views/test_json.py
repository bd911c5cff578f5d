"""The object of `--json`, held to its schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from recorded import decoding, loading, prefilling, request

import magicpig_cli.views
from magicpig_cli.engine.events import Cited, Event, Passage, Step
from magicpig_cli.views.base import Ending, Failure
from magicpig_cli.views.jsonview import encode, result
from magicpig_cli.views.track import Track

SCHEMA = json.loads((Path(magicpig_cli.views.__file__).parent / "ask.schema.json").read_text())


def valid(events: list[Event], ending: Ending) -> dict[str, Any]:
    track = Track()
    for event in events:
        track.fold(event)
    text = encode(result(track, ending))
    assert "\n" not in text
    value: dict[str, Any] = json.loads(text)
    jsonschema.validate(value, SCHEMA)
    return value


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_an_answer() -> None:
    value = valid(list(request(["It", " is"], " green.")), Ending(0))
    assert value["answer"] == "It is green."
    assert value["finish_reason"] == "stop"
    assert value["attention"]["n_bits"] == 8
    assert value["timings"]["prefill_tokens_per_s"] == pytest.approx(6041 / 8.4)
    assert "error" not in value


def test_citations() -> None:
    assert valid(list(request(["It", " is"], " green.")), Ending(0))["citations"] is None
    passage = Passage("report.pdf", 120, 160, 7, 8, 2, 2, "Costs", "It is \x1b green.", 0.41)
    value = valid([*request(["It"], "."), Cited((passage,))], Ending(0))
    assert value["citations"] == [dataclasses.asdict(passage)]
    assert valid([*request(["It"], "."), Cited(())], Ending(0))["citations"] == []


def test_an_interruption_keeps_what_there_is() -> None:
    events = [*loading(), *prefilling(), *list(decoding(["It", " is"]))[:-1]]
    value = valid(events, Ending(130, interrupted=True))
    assert (value["answer"], value["finish_reason"]) == ("It is", "interrupted")
    assert "error" not in value


@pytest.mark.parametrize("n_events", range(6))
def test_a_failure_at_any_time(n_events: int) -> None:
    value = valid(list(request(["It"]))[:n_events], Ending(3, Failure("does_not_fit", "Too long.")))
    assert value["error"] == {"kind": "does_not_fit", "message": "Too long."}
    assert value["finish_reason"] is None


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "iso8859-1"])
def test_any_text_survives_any_encoding(encoding: str) -> None:
    text = 'café 漢字 👨‍👩‍👧 \x1b[31m \x7f \x9b \ud800 \u2028 "\\" \0'
    encoded = encode({"answer": text}, encoding)
    assert json.loads(encoded)["answer"] == text
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in encoded)
    encoded.encode(encoding)


def test_numbers_that_json_lacks_become_null() -> None:
    track = Track()
    track.fold(Step(0, float("nan"), 1.0, 1.0, 1.0, float("inf"), 0.1))
    value = json.loads(encode(result(track, Ending(0))))
    assert value["timings"]["decode_ms_per_token"] is None
