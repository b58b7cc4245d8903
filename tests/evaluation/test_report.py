"""The summary's form and figures, the tables, and the picture."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from k3rl.errors import UserError
from k3rl.evaluation.picture import curves, draw, running_mean, spread
from k3rl.evaluation.report import comparison, evaluation, summary
from k3rl.evaluation.results import read_results, write_results
from k3rl.evaluation.statistics import SAMPLED, TaskResult, paired
from k3rl.evaluation.tables import show

MISMATCH = {"mean": 1e-5, "p99": 1e-4, "max": 2e-3, "n": 9000}


def results(lift: float, *, seed: int, samples: int = 8, tasks: int = 40) -> list[TaskResult]:
    """Two domains over 4 levels and 3 families, and a held-out family; chances are the same whatever the lift."""
    rng = np.random.default_rng(seed)
    out = []
    for domain, base in (("office", 0.2), ("terminal", 0.5)):
        for split in ("test", "test_heldout"):
            for index in range(tasks):
                level = 1 + index % 4
                chance = base / level + (lift if split == "test" else 0.0)
                out.append(
                    TaskResult(
                        task_id=f"{domain}/{split}/{index}",
                        domain=domain,
                        split=split,
                        family="unseen" if split == "test_heldout" else f"family{index % 3}",
                        level=level,
                        tier="low",
                        sampled=tuple(float(x) for x in rng.random(samples) < chance),
                        greedy=float(rng.random() < chance),
                        tokens=20.0 * level,
                        turns=float(level),
                        thinking=0.0,
                        malformed=0.25,
                    )
                )
    return out


BEFORE, AFTER = results(0.0, seed=1), results(0.3, seed=2)


def mean_success(chosen: list[TaskResult]) -> float:
    rates = [sum(r == 1.0 for r in result.sampled) / len(result.sampled) for result in chosen]
    return sum(rates) / len(rates)


def full_summary() -> dict[str, Any]:
    return summary(
        BEFORE,
        AFTER,
        seconds=90.5,
        phases={"rollout": 60.0},
        setup=30.0,
        mismatch=MISMATCH,
        routes_differ=0.01,
        run="quick",
    )


def test_summary_has_the_form_that_is_promised() -> None:
    found = json.loads(json.dumps(full_summary(), allow_nan=False))
    assert (found["seconds"], found["seconds_by_phase"], found["seconds_of_downloads"]) == (
        90.5,
        {"rollout": 60.0},
        30.0,
    )
    assert (found["mismatch"], found["routes_differ"], found["run"]) == (MISMATCH, 0.01, "quick")
    assert found["samples_per_task"] == 8
    places = [found["average"], *found["domains"].values(), found["heldout"]["average"]]
    for place in places:
        for side in ("before", "after", "gain"):
            for measure in ("sampled", "greedy", "pass8"):
                value = place[side][measure]
                assert set(value) == {"mean", "low", "high", "n"}
                assert value["low"] <= value["mean"] <= value["high"]


def test_figures_are_those_of_a_plain_loop() -> None:
    found = full_summary()
    means = {}
    for side, chosen in (("before", BEFORE), ("after", AFTER)):
        by_domain = {
            name: mean_success([r for r in chosen if r.domain == name and r.split == "test"])
            for name in ("office", "terminal")
        }
        for name, mean in by_domain.items():
            assert found["domains"][name][side]["sampled"]["mean"] == pytest.approx(mean)
            assert found["domains"][name][side]["sampled"]["n"] == 40
        means[side] = sum(by_domain.values()) / 2
        assert found["average"][side]["sampled"]["mean"] == pytest.approx(means[side])
        held = [r for r in chosen if r.domain == "office" and r.split == "test_heldout"]
        assert found["heldout"]["domains"]["office"][side]["sampled"]["mean"] == pytest.approx(mean_success(held))
        hard = [r for r in chosen if r.domain == "terminal" and r.split == "test" and r.level == 3]
        assert found["domains"]["terminal"]["levels"]["3"][side]["sampled"]["mean"] == pytest.approx(mean_success(hard))
        one = [r for r in chosen if r.domain == "terminal" and r.split == "test" and r.family == "family1"]
        family = found["domains"]["terminal"]["families"]["family1"][side]
        assert family["sampled"]["mean"] == pytest.approx(mean_success(one))
    assert found["average"]["gain"]["sampled"]["mean"] == pytest.approx(means["after"] - means["before"])
    assert found["average"]["gain"]["sampled"]["low"] > 0


def test_a_domains_gain_is_paired() -> None:
    found = full_summary()["domains"]["office"]["gain"]["sampled"]
    chosen = [[r for r in rs if r.domain == "office" and r.split == "test"] for rs in (BEFORE, AFTER)]
    expected = paired(chosen[0], chosen[1], SAMPLED)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))


def test_usage_is_per_episode() -> None:
    used = full_summary()["domains"]["office"]["after"]["usage"]
    assert used["tokens"] == pytest.approx(20 * (1 + 2 + 3 + 4) / 4)
    assert used["turns"] == pytest.approx(2.5)
    assert used["malformed"] == 0.25
    office = [r for r in AFTER if r.domain == "office" and r.split == "test"]
    assert used["success_per_1000_tokens"] == pytest.approx(1000 * mean_success(office) / 50)


def test_measures_an_evaluation_lacks_are_null() -> None:
    few = [results(lift, seed=seed, samples=4) for lift, seed in ((0.0, 1), (0.1, 2))]
    found = comparison(few[0], few[1])
    assert found["average"]["gain"]["pass8"] is None
    assert found["domains"]["office"]["before"]["pass8"] is None
    assert found["average"]["gain"]["sampled"] is not None
    only_test = [[r for r in rs if r.split == "test"] for rs in few]
    assert comparison(only_test[0], only_test[1])["heldout"] == {}


def test_one_evaluation_alone() -> None:
    alone, both = evaluation(AFTER), full_summary()
    assert alone["average"] == both["average"]["after"]
    office = both["domains"]["office"]
    assert office["after"].items() <= alone["domains"]["office"].items()
    for part in ("levels", "families", "tiers"):
        assert alone["domains"]["office"][part] == {key: sides["after"] for key, sides in office[part].items()}
    assert alone["heldout"]["average"] == both["heldout"]["average"]["after"]


def test_what_cannot_be_summarized_is_refused() -> None:
    with pytest.raises(ValueError, match="different domains"):
        comparison(BEFORE, [r for r in AFTER if r.domain == "office"])
    with pytest.raises(ValueError, match="mismatch lacks max, n"):
        summary(BEFORE, AFTER, seconds=1, phases={}, setup=0, mismatch={"mean": 0, "p99": 0}, routes_differ=0)


def test_results_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "evaluation" / "before.jsonl"
    write_results(file, BEFORE)
    assert read_results(file) == BEFORE
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{oops", "Expecting property name"),
        ("[]", "keys are missing or unknown: domain,"),
        ('{"task_id": "a", "more": 1}', "keys are missing or unknown: domain, family, greedy, level, .*more"),
    ],
)
def test_a_line_that_is_no_result_is_named(tmp_path: Path, line: str, what: str) -> None:
    file = tmp_path / "before.jsonl"
    write_results(file, BEFORE[:1])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UserError, match=rf"before\.jsonl, line 2: not a task's result \({what}"):
        read_results(file)
    with pytest.raises(UserError, match=r"none\.jsonl: cannot be read"):
        read_results(tmp_path / "none.jsonl")


def printed(report: dict[str, Any]) -> str:
    written = io.StringIO()
    show(report, Console(width=80, file=written, color_system=None))
    assert "…" not in written.getvalue()  # nothing was cut off at 80 columns
    return written.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_tables_of_two_evaluations_hold_the_figures() -> None:
    found = full_summary()
    text = printed(found)
    gain = found["average"]["gain"]["sampled"]
    assert f"{100 * gain['mean']:+.1f} ({100 * gain['low']:.1f} to {100 * gain['high']:.1f})" in text
    level = found["domains"]["office"]["levels"]["1"]
    shown = [f"{100 * level[side]['sampled']['mean']:.0f}" for side in ("before", "after")]
    assert ["office", "1", shown[0], "→", shown[1]] in [row[:5] for row in rows(text)]


def test_tables_of_one_evaluation_hold_the_figures() -> None:
    found = evaluation(AFTER)
    text = printed(found)
    office = found["domains"]["office"]
    value = office["sampled"]
    interval = f"({100 * value['low']:.1f}–{100 * value['high']:.1f})"
    assert ["office", "sampled", f"{100 * value['mean']:.1f}", interval] in rows(text)
    measures = [f"{100 * office['levels']['2'][name]['mean']:.0f}" for name in ("sampled", "greedy", "pass8")]
    assert ["2", *measures, "40", "2.0"] in rows(text)
    assert "→" not in text


def test_a_run_s_mismatch_stands_below_its_tables() -> None:
    report = {**full_summary(), "selections_differ": 0.0012}
    report |= {"mismatch": {"mean": 1.04e-6, "p99": 9.9e-6, "max": 2.4e-5, "n": 9790.0}, "routes_differ": 0.00031}
    line = printed(report).splitlines()[-1]
    assert line == (
        "Mismatch of engine and learner: mean 1e-06, p99 9.9e-06, max 2.4e-05, n 9790, routes differ 0.031%, "
        "selections differ 0.12%"
    )
    assert "Mismatch" not in printed(evaluation(results(0.0, seed=1)))


def test_tables_say_what_is_missing() -> None:
    few = results(0.0, seed=1, samples=4)
    assert ["pass@8", "-", "-", "-"] in rows(printed(comparison(few, few)))
    assert ["pass@8", "-"] in rows(printed(evaluation(few)))


def test_curves_come_from_the_metrics_log() -> None:
    log = [
        {"step": 1, "success/office": 0.5, "success/office/level": 3.0, "loss": 1.0},
        {"step": 2, "success/office": None, "success/terminal": 0.25},
        {"step": 3, "success/office": 0.75},
    ]
    assert curves(log, "success/") == {"office": [(1, 0.5), (3, 0.75)], "terminal": [(2, 0.25)]}


@pytest.mark.parametrize("half", [0, 1, 3, 20])
def test_running_mean_against_a_loop(half: int) -> None:
    values = np.random.default_rng(0).random(11)
    expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(11)]
    np.testing.assert_allclose(running_mean(values, half), expected, rtol=1e-12)


def test_labels_are_spread() -> None:
    assert spread([10.0, 11.0, 50.0, 10.5], 4.0) == [10.0, 18.0, 50.0, 14.0]


@pytest.mark.parametrize("steps", [0, 1, 40])
def test_picture_is_a_png_that_shows_the_gain(tmp_path: Path, steps: int) -> None:
    from matplotlib.image import imread

    training = {name: [(s, 0.5) for s in range(1, steps + 1)] for name in ("office", "terminal")} if steps else {}
    file = tmp_path / "new" / "success.png"
    draw(file, full_summary(), training, title="quick")
    pixels = imread(file)
    assert pixels.shape[1] == 1500
    assert pixels[..., :3].std() > 0.05  # not blank
    assert [path.name for path in file.parent.iterdir()] == ["success.png"]


def test_picture_of_an_evaluation_without_greedy_and_pass8(tmp_path: Path) -> None:
    few = [results(lift, seed=3, samples=2) for lift in (0.0, 0.1)]
    draw(tmp_path / "a.png", comparison(few[0], few[1]), {}, title="few")
    assert (tmp_path / "a.png").stat().st_size > 1000
