"""An evaluation of a small random model: what is measured is right, resumable, and told as it was found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from command import one_sentence
from small import small_model
from warm import magicpig

from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.dense import Dense
from magicpig_cli.bench.text import reading_text
from magicpig_cli.engine.engine import Engine, EngineSettings
from magicpig_cli.errors import DoesNotFit, MagicPigError, UsageError
from magicpig_cli.evaluate import run as run_module
from magicpig_cli.evaluate.contenders import Builder, Contender, contenders
from magicpig_cli.evaluate.measure import divergence, output_error, read
from magicpig_cli.evaluate.plot import plot_error
from magicpig_cli.evaluate.record import Record
from magicpig_cli.evaluate.results import bootstrap, summarize, wilson
from magicpig_cli.evaluate.run import EvalOptions, evaluate

TEXT = reading_text(30_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A small range of initial weights, so that attention is spread out and samples matter.
    return small_model(tmp_path_factory.mktemp("small") / "model", initializer_range=0.15)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.load(EngineSettings(model=str(folder), offline=True))


@pytest.fixture(scope="module")
def token_ids(engine: Engine) -> list[int]:
    return engine.loaded.tokenizer(reading_text(900)).input_ids[:700]  # type: ignore[no-any-return]


def options(**changes: Any) -> EvalOptions:
    chosen: dict[str, Any] = {
        "ctx": 1600,
        "methods": ("dense", "lsh", "quest"),
        "tasks": ("qa", "error", "kl"),
        "budgets": (0.2,),
        "samples": 2,
        "steps": 3,
        "seed": 0,
        "text": TEXT,
    }
    return EvalOptions(**(chosen | changes))


def quiet(line: str) -> None:
    pass


def test_contenders_are_every_method_at_every_budget_and_dense_once() -> None:
    found = contenders(("dense", "lsh", "quest"), (0.1, 0.2))
    assert [c.label for c in found] == ["dense", "lsh 0.1", "lsh 0.2", "quest 0.1", "quest 0.2"]
    assert [c.budget for c in contenders(("dense", "quest"), None)] == [None, None]


def test_methods_that_can_take_part_at_every_tolerance() -> None:
    found = contenders(("dense", "lsh", "quest"), None, (0.1, 0.2))
    assert [c.label for c in found] == ["dense", "lsh within 0.1", "lsh within 0.2", "quest"]
    found = contenders(("vattention", "quest"), (0.3,), (0.1,))
    assert [c.label for c in found] == ["vattention 0.3", "vattention within 0.1", "quest 0.3"]


def test_methods_read_what_the_budget_says(engine: Engine, token_ids: list[int]) -> None:
    entrants = contenders(("lsh", "lsh-published", "quest", "snapkv", "dsa", "oracle-sampling"), (0.1,))
    for contender, measured in output_error(engine, token_ids, 8, entrants, (0,), 0):
        share = measured["keys_touched"] / measured["keys_offered"]
        assert 0.07 < share < 0.14, contender
        per_group = measured["rows_touched"] / measured["rows_offered"]
        assert share * 0.999 <= per_group <= 2 * share  # two query heads per KV head


def test_rivals_read_as_much_as_lsh_when_no_budget_is_given(engine: Engine, token_ids: list[int]) -> None:
    session, _ = read(engine, token_ids, 1)
    builder = Builder(session, (0,), 0)
    quest: Any = builder.build(Contender("quest", None))
    lsh: Any = builder.build(Contender("lsh", None))
    assert quest.budget == builder.share("lsh", lsh.params)


@pytest.mark.parametrize("budget", [0.01, 0.05, 0.3])
def test_small_shares_ask_for_more_collisions_before_fewer_tables(
    engine: Engine, token_ids: list[int], budget: float
) -> None:
    """With the usual number of tables as a limit, no larger M would meet the share; the share is met."""
    session, _ = read(engine, token_ids, 1)
    builder = Builder(session, (0,), 0)
    usual = lsh_params(session.n_tokens)
    params = builder.lsh_for(usual, budget)
    assert params.min_collisions >= usual.min_collisions
    assert builder.share("lsh", params) == pytest.approx(budget, rel=0.1)
    if params.min_collisions > usual.min_collisions:
        assert params.n_tables <= usual.n_tables
    if params.min_collisions < 8:
        steeper = replace(params, min_collisions=params.min_collisions + 1)
        assert builder.tables("lsh", steeper, budget) > usual.n_tables


def test_output_error_is_that_of_attention_over_the_chosen_keys(engine: Engine, token_ids: list[int]) -> None:
    """All keys err by nothing; fewer err more; every sampled layer, head and step is counted."""
    found = dict(
        (c.budget, m)
        for c, m in output_error(
            engine, token_ids, 5, contenders(("oracle-topk",), (0.02, 0.3, 1.0)), (0, 2), 0
        )
    )
    assert found[1.0]["relative_error"] < 1e-4
    assert found[0.02]["relative_error"] > 2 * found[0.3]["relative_error"] > 0
    by_layer = found[0.3]["relative_error_by_layer_and_head"]
    assert list(by_layer) == ["1", "3"]
    assert found[0.3]["outputs"] == 2 * 4 * 5
    flat = [error for heads in by_layer.values() for error in heads]
    assert found[0.3]["relative_error"] == pytest.approx(sum(flat) / len(flat), abs=1e-4)


def test_what_a_method_knows_of_its_error_is_measured(engine: Engine, token_ids: list[int]) -> None:
    entrants = contenders(("lsh", "vattention", "quest"), None, (1e-6, 1e6))
    found = {c.label: m for c, m in output_error(engine, token_ids, 5, entrants, (0, 2), 0)}
    all_exact, all_sampled = found["lsh within 1e-06"], found["lsh within 1e+06"]
    outputs = 2 * 4 * 5
    assert all_exact["relative_error"] < 1e-4
    assert all_exact["heads_exact"] == all_exact["heads_judged"] == outputs
    assert "outputs_estimated" not in all_exact  # nothing was left to estimate
    assert all_sampled["heads_exact"] == 0
    assert all_sampled["outputs_within_tolerance"] == all_sampled["outputs_estimated"] == outputs
    assert 0.1 < all_sampled["estimate_over_error_median"] < 10
    typical = all_sampled["relative_error_median"] * all_sampled["estimate_over_error_median"]
    entrants = contenders(("lsh",), None, (1.5 * typical,))
    ((_, between),) = output_error(engine, token_ids, 5, entrants, (0, 2), 0)
    assert 0 < between["heads_resampled"] + between["heads_exact"] < outputs
    assert between["relative_error"] < all_sampled["relative_error"]
    assert between["keys_touched"] > all_sampled["keys_touched"]
    assert found["vattention within 1e-06"]["keys_touched"] > found["vattention within 1e+06"]["keys_touched"]
    assert "outputs_estimated" not in found["quest"]


@torch.inference_mode()
def test_divergence_is_that_of_the_models_own_distributions(engine: Engine, token_ids: list[int]) -> None:
    entrants = [Contender("dense", None), Contender("quest", 1.0), Contender("streaming", 0.05)]
    found = {c.method: m for c, m in divergence(engine, token_ids, 6, entrants, (0,), 0)}
    assert found["dense"]["kl_max"] == 0.0
    assert found["quest"]["kl_max"] < 1e-5
    assert found["streaming"]["kl_max"] >= found["streaming"]["kl_mean"] > 1e-4
    # Perplexity against the model's own logits over the whole text at once.
    session, logits = read(engine, token_ids[:-5], 0)
    assert session.method == Dense()
    expected = []
    for i in range(5, 0, -1):
        _, logits = read(engine, token_ids[:-i], 0)
        expected.append(-float(torch.log_softmax(logits, 0)[token_ids[-i]]))
    assert found["dense"]["negative_log_likelihood"] == pytest.approx(sum(expected) / 5, abs=2e-3)


def test_an_evaluation_goes_on_where_it_was_interrupted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lines = tmp_path / "results.jsonl", []
    prefills = []
    for name in ("answer_problem", "output_error", "divergence"):
        real = getattr(run_module, name)

        def counted(*arguments: Any, real: Any = real, name: str = name) -> Any:
            prefills.append(name)
            return real(*arguments)

        monkeypatch.setattr(run_module, name, counted)

    def interrupt(line: str) -> None:
        lines.append(line)
        if len(lines) == 4:  # qa 1 and 2, error 1 are done
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(engine, options(), out, interrupt)
    assert len(prefills) == 3
    with out.open("a") as file:
        file.write('{"task": "err')  # cut in the middle of a line
    outcome = evaluate(engine, options(), out, quiet)
    assert len(prefills) == 6
    assert json.loads(out.read_text().splitlines()[0])["settings"]["ctx"] == 1600
    again = evaluate(engine, options(), out, quiet)
    assert len(prefills) == 6
    assert again["results"] == outcome["results"]
    fresh = evaluate(engine, options(), None, quiet)
    assert fresh["results"] == outcome["results"]
    with pytest.raises(
        UsageError, match=r"results\.jsonl holds results with steps 3, not 5; name another file"
    ):
        evaluate(engine, options(steps=5), out, quiet)


def test_results_have_every_field_and_say_none_where_nothing_was_measured(
    engine: Engine, tmp_path: Path
) -> None:
    outcome = evaluate(engine, options(samples=1), None, quiet)
    assert outcome["settings"]["dense_layers"] == [0]
    assert len(outcome["results"]) == 3 * 3
    for result in outcome["results"]:
        measured = {"qa": "score", "error": "relative_error", "kl": "kl_mean"}
        for task, field in measured.items():
            assert (result[field] is not None) == (task == result["task"])
        assert result["samples"] == 1
        assert result["ctx"] == 1600
    plot_error(outcome, tmp_path / "error.svg")
    picture = (tmp_path / "error.svg").read_text()
    ElementTree.fromstring(picture)
    assert "quest" in picture
    assert "lsh" in picture


def test_a_context_beyond_the_model_is_refused(engine: Engine) -> None:
    with pytest.raises(DoesNotFit, match="reads at most 8,192"):
        evaluate(engine, options(ctx=9000), None, quiet)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("dear diary\n")
    with pytest.raises(UsageError, match="holds no results of magicpig eval"):
        Record(file, {"ctx": 1})
    assert file.read_text() == "dear diary\n"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "such" / "folder.jsonl"):
        with pytest.raises(UsageError, match=r"--out .* cannot be used"):
            Record(path, {"ctx": 1})
    with pytest.raises(MagicPigError, match=r"--plot could not write"):
        plot_error({"results": [], "model": "m", "settings": {"ctx": 1}}, tmp_path)


def test_wilson_interval_is_that_of_the_textbook() -> None:
    low, high = wilson([1.0] * 8 + [0.0] * 2)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson([1.0] * 5)[1] == 1.0


def test_bootstrap_interval_is_that_of_the_normal_for_many_values() -> None:
    values = [i / 999 for i in range(1000)]
    low, high = bootstrap(values)
    error = 1.96 * math.sqrt(1 / 12 / 1000)
    assert low == pytest.approx(0.5 - error, abs=0.004)
    assert high == pytest.approx(0.5 + error, abs=0.004)


def test_means_are_over_samples() -> None:
    items = [
        {"task": "niah", "method": "lsh", "budget": 0.1, "sample": i, "score": i / 2,
         "keys_offered": 100, "keys_touched": 10 + i, "rows_offered": 50, "rows_touched": 20}
        for i in range(3)
    ]  # fmt: skip
    (result,) = summarize(items, 4096)
    assert result["score"] == 0.5
    assert result["keys_touched_share"] == pytest.approx(0.11)
    assert result["keys_read_share"] == 0.4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "niah,vtt"], "--tasks names 'vtt', but must be among niah"),
        (["--methods", "lhs"], "--methods names 'lhs', but must be among lsh, dense"),
        (["--budgets", "0.1,5"], "--budgets is 5, but must be a share"),
        (["--budgets", "x"], "must be shares such as"),
        (["--ctx", "10"], "--ctx is 10, but must be from 256"),
        (["--samples", "0"], "--samples is 0"),
        (["--tolerance", "0.1,x"], "must be errors such as"),
        (["--tolerance", "0"], "--tolerance is 0, but must be above 0"),
        (["--methods", "quest", "--tolerance", "0.1"], "of which --methods names neither"),
        (["--plot", "a.svg"], "add error to --tasks"),
        (["--tasks", "error", "--plot", "a.png"], "does not end in .svg"),
    ],
)
def test_a_wrong_wish_is_refused(arguments: list[str], said: str) -> None:
    result = magicpig("eval", *arguments)
    assert result.status == 2
    assert said in result.err
    assert one_sentence(result.err)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    """One sample of two tasks on a text of one's own, as JSON and as a table, the second from the file."""
    text = tmp_path / "text.md"
    text.write_text(TEXT)
    wishes = (
        "eval", "-m", str(folder), "--ctx", "1600", "--methods", "dense,snapkv", "--tasks", "qa,error",
        "--samples", "1", "--steps", "3", "--text", str(text), "--out", str(tmp_path / "o.jsonl"),
    )  # fmt: skip
    as_json = magicpig(*wishes, "--json")
    assert as_json.status == 0, as_json.err
    outcome = json.loads(as_json.out)
    assert outcome["settings"]["text"] == "text.md"
    assert {(r["task"], r["method"]) for r in outcome["results"]} == {
        (task, method) for task in ("qa", "error") for method in ("dense", "snapkv")
    }
    assert "qa, sample 1 of 1" in as_json.err
    table = magicpig(*wishes, "--plot", str(tmp_path / "p.svg"))
    assert table.status == 0, table.err
    assert "sample" not in table.err
    assert "Scores" in table.out
    assert "snapkv" in table.out
    assert (tmp_path / "p.svg").exists()
