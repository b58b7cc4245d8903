"""Kills at the worst moments: the same command goes on, to the same numbers, and nothing is left running."""

import json
import os
import signal

import pytest
from loop_runs import alive, family, finish, metrics, overrides, played, processes, start, train, wait_until

pytestmark = pytest.mark.timeout(900)

EVALUATED = 8  # groups of an evaluation: 2 test and 2 held-out tasks, each sampled and greedy


def checkpoints(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))


def test_killed_three_times_and_still_the_same_run(undisturbed, tiny_model, tmp_path):
    run_dir = tmp_path / "killed"
    arguments = overrides(tiny_model, run_dir)

    spent = [0.0]

    def killed(*fate):
        status, _, err = train(arguments, run_dir, fate=fate)
        assert status == -signal.SIGKILL, err
        wait_until(lambda: not processes(run_dir), "every process of the killed run is gone")
        spent.append(sum(json.loads((run_dir / "seconds.json").read_text()).values()))
        assert spent[-1] > spent[-2]  # time that was lost was spent

    # during the rollout of step 2, of 3 groups: one is collected, the others are in flight
    killed("k3rl.rollout.pool", "_Run._collect", str(EVALUATED + 3 + 2), "before")
    assert [m["step"] for m in metrics(run_dir)] == [1]
    assert checkpoints(run_dir) == []
    # between the optimizer step of step 4 and its checkpoint; the run began anew, there was no checkpoint
    killed("k3rl.learner.group", "LearnerGroup.train", "4", "after")
    assert [m["step"] for m in metrics(run_dir)] == [1, 2, 3]
    assert checkpoints(run_dir) == ["step-000002"]
    # while the learner writes the checkpoint of step 4, resumed from that of step 2
    killed("k3rl.learner.group", "LearnerGroup.save", "1", "during")
    assert [m["step"] for m in metrics(run_dir)] == [1, 2, 3, 4]
    assert checkpoints(run_dir) == ["step-000002"]

    status, _, err = train(arguments, run_dir)
    assert status == 0, err
    assert json.loads((run_dir / "summary.json").read_text())["seconds"] > spent[-1]
    assert metrics(run_dir) == metrics(undisturbed)
    assert played(run_dir) == played(undisturbed)
    assert checkpoints(run_dir) == ["step-000002", "step-000004"]
    for name in ("model/model.safetensors", "model/config.json", "evaluation/before.jsonl", "evaluation/after.jsonl"):
        assert (run_dir / name).read_bytes() == (undisturbed / name).read_bytes(), name
    wait_until(lambda: not processes(run_dir), "every process of the finished run is gone")


def test_stopped_by_signals_it_says_so_in_one_line_and_goes_on(undisturbed, tiny_model, tmp_path):
    run_dir = tmp_path / "stopped"
    run_dir.mkdir()
    arguments = overrides(tiny_model, run_dir, "train.checkpoint_every=1", "train.evaluate=false")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and theirs, ignore it
    for steps, number, status, text in ((1, signal.SIGINT, 130, "interrupted"), (3, signal.SIGTERM, 143, "terminated")):
        process = start(arguments, run_dir)
        wait_until(lambda n=steps: f"step-{n:06d}" in checkpoints(run_dir), f"checkpoint {steps}", 200)
        process.send_signal(number)
        found, _, err = finish(process)
        assert (found, err) == (status, f"k3rl: {text}; the same command resumes from the last checkpoint\n")
        wait_until(lambda: not processes(run_dir), "every process of the stopped run is gone")
    status, _, err = train(arguments, run_dir)
    assert status == 0, err
    assert metrics(run_dir) == metrics(undisturbed)


def test_killed_actors_are_replaced_or_told_and_change_nothing(undisturbed, tiny_model, tmp_path):
    run_dir = tmp_path / "workers"
    run_dir.mkdir()
    arguments = overrides(tiny_model, run_dir)
    process = start(arguments, run_dir)
    for steps, actor in ((1, "EpisodeWorker"), (2, "PolicyWorker"), (3, "LearnerRank")):
        wait_until(lambda n=steps: len(metrics(run_dir)) >= n or process.poll() is not None, f"step {steps}", 200)
        assert process.poll() is None, process.communicate()
        (pid,) = processes(run_dir, command=f"ray::{actor}")
        os.kill(pid, signal.SIGKILL)
    status, _, err = finish(process)
    assert err.count("died: starting new ones") == 2
    # rollout workers hold nothing that cannot be made again; the learner's state goes on from its checkpoint
    assert status == 1
    assert err.splitlines()[-1].startswith("k3rl: a learner rank died during")
    assert [m["step"] for m in metrics(run_dir)][:3] == [1, 2, 3]
    assert checkpoints(run_dir)[0] == "step-000002"
    status, _, err = train(arguments, run_dir)
    assert status == 0, err
    assert metrics(run_dir) == metrics(undisturbed)
    assert played(run_dir) == played(undisturbed)


def test_a_killed_driver_takes_its_sandboxes_with_it(tiny_model, tmp_path):
    run_dir = tmp_path / "sandboxes"
    arguments = [a for a in overrides(tiny_model, run_dir) if "environment" not in a]
    arguments += [
        "environment=[terminal]",
        "environment.terminal.sandboxes=3",
        "rollout.max_context=640",
        "train.evaluate=false",
    ]
    process = start(arguments, run_dir)

    def sandboxes():
        assert process.poll() is None, process.communicate()
        return [pid for pid, command in family(process.pid).items() if "bwrap" in command]

    wait_until(lambda: len(sandboxes()) >= 3, "sandboxes run", 200)
    members = family(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    wait_until(lambda: not alive(members), "sandboxes and Ray's processes are gone")


def test_a_domain_that_raises_is_told_in_one_line(tiny_model, tmp_path, ray_cluster):
    run_dir = tmp_path / "broken"
    status, _, err = train(
        overrides(tiny_model, run_dir, ray_cluster, "+environment.guess.fail_every=1", "train.evaluate=false"), run_dir
    )
    assert status == 1
    (line,) = err.splitlines()
    assert line.startswith("k3rl: step 1: 12 of 12 episodes of guess failed")
    assert "RuntimeError: the guess is broken on purpose" in line
