"""`k3rl train` as a user runs it: what it leaves, what a second start changes, what seeds and ranks change."""

import json
import shutil

import pytest
from loop_runs import metrics, overrides, played, train

from k3rl.evaluation.results import read_results
from k3rl.model import load_model
from k3rl.run_folder import RunFolder

pytestmark = pytest.mark.timeout(900)


def contents(folder):
    """Every file's bytes, but the lock."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_leaves_all_it_should(undisturbed):
    records = metrics(undisturbed)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    trained = [record for record in records if not record["skipped"]]  # a step without mixed groups moves nothing
    assert trained
    assert all(r["grad_norm"] > 0 and r["mismatch/n"] > 0 and r["mismatch/mean"] < 5e-5 for r in trained)
    # 3 tasks x 4 samples a step; uniform levels, cursors count up by level
    rows = played(undisturbed)
    assert [step for step, _, _ in rows] == [1] * 12 + [2] * 12 + [3] * 12 + [4] * 12
    assert len(set(rows)) == len({(task, sample) for _, task, sample in rows}) == 48
    assert sorted(p.name for p in (undisturbed / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    load_model(undisturbed / "model")
    assert (undisturbed / "model" / "tokenizer.json").is_file()


def test_checkpoints_hold_the_driver_s_state(undisturbed):
    from k3rl.learner.checkpoint import verify

    with RunFolder(undisturbed) as folder:
        _, state = folder.newest_checkpoint(lambda learner, state: verify(learner))
    assert state["step"] == 4
    assert sum(state["curriculum"]["guess"]["cursor"].values()) == 12  # 4 steps of 3 tasks
    assert state["scale"]["weight"]["guess"] == pytest.approx(1 - 0.9**4)


def test_a_finished_run_is_left_as_it_is(undisturbed, tiny_model, ray_cluster):
    before = contents(undisturbed)
    status, out, err = train(overrides(tiny_model, undisturbed, ray_cluster), undisturbed)
    assert (status, err) == (0, "")
    assert "is finished" in out
    assert contents(undisturbed) == before


def test_another_setting_is_refused_by_name(undisturbed, tiny_model):
    status, _, err = train(overrides(tiny_model, undisturbed, "algorithm.clip_low=0.1"), undisturbed)
    assert status == 2
    assert err.count("\n") == 1
    assert "algorithm.clip_low" in err


def test_two_ranks_train_as_one(undisturbed, tiny_model, tmp_path, ray_cluster):
    run_dir = tmp_path / "ranks"
    status, _, err = train(
        overrides(tiny_model, run_dir, ray_cluster, "learner.ranks=2", "train.steps=2", "train.evaluate=false"), run_dir
    )
    assert status == 0, err
    for two, one in zip(metrics(run_dir), metrics(undisturbed)[:2], strict=True):
        assert two["success"] == one["success"]
        assert two.get("grad_norm", 0) == pytest.approx(one.get("grad_norm", 0), rel=1e-4)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-7)


def test_evaluation_before_and_after(undisturbed):
    summary = json.loads((undisturbed / "summary.json").read_text())
    before, after = (read_results(undisturbed / "evaluation" / f"{name}.jsonl") for name in ("before", "after"))
    assert [r.task_id for r in before] == [r.task_id for r in after]
    # evaluation.tasks test tasks over both levels, and as many of held-out families, 2 samples each
    assert [(r.split, r.level) for r in before] == [("test", 1), ("test", 2), ("test_heldout", 1), ("test_heldout", 2)]
    assert all(len(r.sampled) == 2 for r in (*before, *after))
    for results, name in ((before, "before"), (after, "after")):
        sampled = [reward for r in results if r.split == "test" for reward in r.sampled]
        assert summary["domains"]["guess"][name]["sampled"]["mean"] == pytest.approx(sum(sampled) / 4)
    phases = {"start", "rollout", "learn", "publish", "checkpoint", "evaluate_before", "evaluate_after"}
    assert summary["seconds_by_phase"].keys() == phases
    assert summary["seconds"] == pytest.approx(sum(summary["seconds_by_phase"].values()))
    assert summary["steps"] == 4
    assert (undisturbed / "success.png").read_bytes()[:4] == b"\x89PNG"


def test_more_steps_continue_a_finished_run(undisturbed, tiny_model, tmp_path, ray_cluster):
    run_dir = tmp_path / "longer"
    shutil.copytree(undisturbed, run_dir)
    status, _, err = train(overrides(tiny_model, run_dir, ray_cluster, "train.steps=5"), run_dir)
    assert status == 0, err
    assert [record["step"] for record in metrics(run_dir)] == [1, 2, 3, 4, 5]
    assert metrics(run_dir)[:4] == metrics(undisturbed)
    assert not {row[1:] for row in played(run_dir) if row[0] == 5} & {row[1:] for row in played(undisturbed)}
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 5
    before, after = (f"evaluation/{name}.jsonl" for name in ("before", "after"))
    assert (run_dir / before).read_bytes() == (undisturbed / before).read_bytes()
    assert (run_dir / after).stat().st_mtime > (undisturbed / "done.json").stat().st_mtime  # played again


def test_a_model_folder_is_evaluated_and_compared(undisturbed, tiny_model, tmp_path, ray_cluster):
    compared = undisturbed / "model"
    arguments = overrides(tiny_model, tmp_path / "run", ray_cluster, f"evaluation.compare={compared}")
    status, out, err = train(arguments, tmp_path, command="eval")
    assert status == 0, err
    assert "guess" in out
    folder = tmp_path / "eval-tiny-undisturbed"  # a model folder's name, and a run's
    assert out.splitlines()[-1] == str(folder / "report.json")
    report = json.loads((folder / "report.json").read_text())
    assert report["models"] == [str(tiny_model), str(compared)]
    assert report["settings"]["compare"] == str(compared)
    assert report["domains"] == json.loads((undisturbed / "summary.json").read_text())["domains"]
    # the run's own numbers, from the model folders alone
    for name, run in (("results", "before"), ("compared", "after")):
        evaluated = read_results(folder / f"{name}.jsonl")
        assert evaluated == read_results(undisturbed / "evaluation" / f"{run}.jsonl")
