"""`k3rl sft` from nothing: stages, a kill, one model at the end."""

import json
import signal

import pytest
from loop_runs import metrics, processes, train, wait_until

from k3rl.model import load_model
from k3rl.model_folder import model_config

pytestmark = pytest.mark.timeout(900)

FORMAT = "{name: format, source: format, steps: 4, batch_tokens: 600, sparse: false, quantize: false}"
SOLUTIONS = "{name: solutions, source: solutions, steps: 4, batch_tokens: 600}"
INDEXER = "{name: indexer, source: solutions, steps: 2, batch_tokens: 600, train: indexer, sparse: false}"


def overrides(run_dir):
    return [
        f"run_dir={run_dir}",
        "model.preset=nano",
        "model.overrides={num_layers: 2, full_attention: [1], hidden_size: 64, intermediate_size: 64}",
        "environment=[]",
        "+environment.guess._target_=guess_domain.GuessDomain",
        "rollout.max_context=192",
        "rollout.slots=8",
        "learner.threads=1",
        "train.checkpoint_every=2",
        "train.keep_checkpoints=1",
        "sft.demonstrations=12",
        f"sft.stages=[{FORMAT}, {SOLUTIONS}, {INDEXER}]",
        "evaluation.tasks=2",
        "evaluation.heldout_tasks=0",
        "evaluation.samples=2",
        "ray.object_store_mib=80",
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, ray_cluster):
    run_dir = tmp_path_factory.mktemp("sft") / "undisturbed"
    status, _, err = train([*overrides(run_dir), ray_cluster], run_dir, command="sft")
    assert status == 0, err
    return run_dir


def test_stages_follow_each_other_to_a_model(undisturbed):
    records = metrics(undisturbed)
    assert [(r["step"], r["stage"]) for r in records] == [
        (step, "format" if step <= 4 else "solutions" if step <= 8 else "indexer") for step in range(1, 11)
    ]
    assert records[3]["loss"] < records[0]["loss"]
    config = model_config(undisturbed / "model")
    assert (config.num_layers, config.hidden_size) == (2, 64)
    first, last = (load_model(undisturbed / name) for name in ("stages/1-solutions", "stages/2-indexer"))
    moved = {n for (n, a), b in zip(first.named_parameters(), last.parameters(), strict=True) if not a.equal(b)}
    assert moved
    assert all("indexer" in name for name in moved)
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert "guess" in summary["domains"]
    assert summary["seconds"] == pytest.approx(sum(summary["seconds_by_phase"].values()))
    phases = ["demonstrations", "stage format", "rendering", "stage solutions", "stage indexer", "evaluation"]
    assert list(summary["seconds_by_phase"]) == phases
    assert all(seconds > 0 for seconds in summary["seconds_by_phase"].values())


def test_killed_between_two_stages_it_makes_the_same_model(undisturbed, tmp_path, ray_cluster):
    run_dir = tmp_path / "killed"
    # the first stage is exported, but its end is not yet written down
    fate = ("k3rl.learner.group", "LearnerGroup.export", "1", "after")
    status, _, err = train(overrides(run_dir), run_dir, fate=fate, command="sft")
    assert status == -signal.SIGKILL, err
    wait_until(lambda: not processes(run_dir), "every process of the killed run is gone")
    status, _, err = train([*overrides(run_dir), ray_cluster], run_dir, command="sft")
    assert status == 0, err
    assert metrics(run_dir) == metrics(undisturbed)
    for name in ("model/model.safetensors", "model/config.json", "evaluation/after.jsonl"):
        assert (run_dir / name).read_bytes() == (undisturbed / name).read_bytes(), name
