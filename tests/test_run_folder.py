"""The run folder: one writer, the same settings, whole files, checkpoints that survive damage and full disks."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from k3rl import run_folder
from k3rl.config import Config, StageSection, SupervisedSection, TrainSection
from k3rl.errors import CheckpointError, ConfigError, InfrastructureError, UserError
from k3rl.learner import checkpoint
from k3rl.run_folder import RunFolder, write_atomically
from k3rl.supervised.loop import standing


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path / "run") as opened:
        yield opened


def verify(learner, state):
    checkpoint.verify(learner)


def save(folder, step, keep=9, state=None):
    def learner(path):
        checkpoint.write(path, {"w": torch.full((50,), float(step))}, {"steps": step})

    folder.save_checkpoint(step, state or {"step": step}, learner, keep)


def names(folder):
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def test_a_second_process_is_refused_until_the_first_is_gone(folder):
    program = f"from k3rl.run_folder import RunFolder\nRunFolder({str(folder.path)!r})"
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "another process is running it" in refused.stderr
    with pytest.raises(UserError, match="wait, or choose another"):
        RunFolder(folder.path)
    folder.close()
    RunFolder(folder.path).close()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir=.*file/run.*choose a folder"):
        RunFolder(tmp_path / "file" / "run")


@pytest.fixture
def begun(folder):
    """A run folder in which something was done."""
    folder.metrics.write_text('{"step": 1}\n')
    return folder


def test_a_resumed_run_keeps_its_settings_but_for_those_free_to_change(begun, caplog):
    config = Config(environment={"echo": {"_target_": "a.B"}}, curriculum=Config().curriculum)
    begun.store_config(config)
    begun.store_config(config)
    begun.store_config(replace(config, name="other", train=TrainSection(seconds=99, keep_checkpoints=5)))
    smaller = replace(config.rollout, slots=8, concurrent_episodes=16, policy_workers=2)
    begun.store_config(replace(config, rollout=smaller, learner=replace(config.learner, ranks=2, threads=1)))
    with pytest.raises(ConfigError, match=r"\(learner\.expert_rate, rollout\.temperature\)"):
        begun.store_config(
            replace(
                config,
                rollout=replace(smaller, temperature=0.5),
                learner=replace(config.learner, ranks=2, expert_rate=0.5),
            )
        )
    changed = replace(
        config,
        seed=1,
        environment={"echo": {"_target_": "a.B", "x": 1}},
        train=TrainSection(checkpoint_every=7),
    )
    with pytest.raises(ConfigError, match=r"\(environment\.echo\.x, seed, train\.checkpoint_every\)"):
        begun.store_config(changed)
    assert not caplog.records


def test_what_errors_ask_to_change_decides_about_steps_to_come_and_is_told(begun, caplog):
    config = Config()
    begun.store_config(config)
    slower = replace(config.learner, learning_rate=1e-5, clip_gradient=0.1)
    longer = replace(config.train, steps=9)
    rollout = replace(config.rollout, max_context=800)
    begun.store_config(replace(config, learner=slower, rollout=rollout, train=longer))
    (record,) = caplog.records
    assert record.getMessage() == (
        "run goes on with other settings from here: learner.clip_gradient=0.1 (was 1.0), "
        "learner.learning_rate=1e-05 (was 0.0003), rollout.max_context=800 (was 640), train.steps=9 (was 60)"
    )


def test_settings_with_which_nothing_was_done_may_change(folder):
    folder.store_config(Config())
    folder.metrics.touch()
    folder.store_config(Config(seed=1))
    (folder.path / "evaluation" / "before.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"\(seed\)"):
        folder.store_config(Config(seed=2))


def staged(*stages):
    return Config(sft=SupervisedSection(stages=tuple(StageSection(name=name, steps=steps) for name, steps in stages)))


def test_stages_may_change_until_they_begin(begun):
    names = [(f"s{place}", 10) for place in range(12)]
    begun.store_config(staged(*names))
    begun.store_config(staged(*names[:3], ("s3", 20), *names[4:]), stage=3, step=0)
    begun.store_config(staged(*names[:10]), stage=2, step=5)
    begun.store_config(staged(*names), stage=10)
    with pytest.raises(ConfigError, match=r"\(sft\.stages\.2\.steps\)"):
        begun.store_config(staged(*names[:2], ("s2", 20), ("s3", 20)), stage=2, step=1)
    with pytest.raises(ConfigError, match=r"\(sft\.stages\.9, sft\.stages\.10\)"):
        begun.store_config(staged(*names[:9]), stage=11)


def test_the_stage_under_way_may_go_on_at_another_rate(begun):
    def rates(*rates):
        return Config(sft=SupervisedSection(stages=tuple(StageSection(learning_rate=rate) for rate in rates)))

    begun.store_config(rates(1e-3, 1e-3))
    begun.store_config(rates(1e-3, 1e-4), stage=1, step=5)
    with pytest.raises(ConfigError, match=r"\(sft\.stages\.0\.learning_rate\)"):
        begun.store_config(rates(1e-4, 1e-4), stage=1, step=5)


def test_a_run_stands_where_its_newest_checkpoint_does(folder):
    assert standing(folder) == (0, 0)
    save(folder, 7, state={"stage": 1, "step": 4})
    assert standing(folder) == (1, 4)


def test_mappings_with_numbers_for_keys_are_compared(begun):
    config = Config()
    levels = replace(config, evaluation=replace(config.evaluation, levels={1: 0.5, 2: 0.5}))
    begun.store_config(levels)
    begun.store_config(levels)
    with pytest.raises(ConfigError, match=r"evaluation\.levels\.1, evaluation\.levels\.2"):
        begun.store_config(replace(config, evaluation=replace(config.evaluation, levels={1: 0.25, 2: 0.75})))


def test_the_newest_whole_checkpoint_wins_and_the_last_ones_are_kept(folder):
    assert folder.newest_checkpoint(verify) is None
    for step in (2, 4, 6):
        save(folder, step, keep=2)
    assert names(folder) == ["step-000004", "step-000006"]
    learner, state = folder.newest_checkpoint(verify)
    assert state == {"step": 6}
    assert torch.equal(checkpoint.read(learner)[0]["w"], torch.full((50,), 6.0))


def truncate(file):
    os.truncate(file, file.stat().st_size // 2)


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["state.json", "learner/tensors.safetensors", "learner/values.json", "learner/manifest.json"]
)
def test_a_damaged_checkpoint_is_told_passed_over_and_written_again(folder, damage, name, caplog):
    save(folder, 2)
    save(folder, 4)
    damage(folder.path / "checkpoints" / "step-000004" / name)
    _, state = folder.newest_checkpoint(verify)
    assert state == {"step": 2}
    (record,) = caplog.records
    assert "passing over step-000004" in record.getMessage()
    assert "\n" not in record.getMessage()
    save(folder, 3, keep=1)  # a run that ends earlier keeps what is whole, not what is new
    assert folder.newest_checkpoint(verify)[1] == {"step": 3}
    save(folder, 4, keep=1)
    assert folder.newest_checkpoint(verify)[1] == {"step": 4}
    assert names(folder) == ["step-000004"]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(folder):
    save(folder, 2)
    save(folder, 4)
    for step, name in ((2, "learner/manifest.json"), (4, "learner/tensors.safetensors")):
        truncate(folder.path / "checkpoints" / f"step-{step:06d}" / name)
    with pytest.raises(
        CheckpointError, match=r"no checkpoint can be read \(the newest: .*step-000004.*truncated"
    ) as caught:
        folder.newest_checkpoint(verify)
    assert "\n" not in str(caught.value)


def test_what_a_killed_run_left_half_written_is_removed(folder):
    save(folder, 2)
    half = folder.path / "checkpoints" / ".tmp-step-000004"
    half.mkdir()
    (half / "state.json").write_text("{")
    folder.close()
    with RunFolder(folder.path) as again:
        assert names(again) == ["step-000002"]


def test_a_full_disk_is_told_and_earlier_checkpoints_stay(folder, monkeypatch):
    save(folder, 2)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InfrastructureError, match=r"step 4 .* could not be written.*Make room") as caught:
            save(folder, 4)
        assert "\n" not in str(caught.value)
        with pytest.raises(InfrastructureError, match=r"summary\.json could not be written: No space left"):
            folder.store_json("summary.json", {})
    assert names(folder) == ["step-000002"]
    assert folder.newest_checkpoint(verify)[1] == {"step": 2}
    assert sorted(p.name for p in folder.path.iterdir()) == [".lock", "checkpoints", "evaluation", "trajectories"]


def test_a_full_disk_under_the_learner_leaves_no_half_checkpoint(folder):
    save(folder, 2)

    def full(path):
        path.mkdir()
        raise InfrastructureError("checkpoint could not be written: the disk is full: free some space")

    with pytest.raises(InfrastructureError, match="the disk is full"):
        folder.save_checkpoint(4, {}, full, keep=1)
    assert names(folder) == ["step-000002"]


def test_files_are_whole_or_what_they_were(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_atomically(file, b"first")

    def torn(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(run_folder.os, "fsync", torn)
        with pytest.raises(InfrastructureError):
            write_atomically(file, b"second")
    assert file.read_bytes() == b"first"
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_json_values_come_back(folder):
    assert folder.read_json("seconds.json") is None
    folder.store_json("seconds.json", {"rollout": 1.5})
    assert folder.read_json("seconds.json") == {"rollout": 1.5}


def test_a_state_whose_hash_is_wrong_is_damage(folder):
    save(folder, 2)
    file = folder.path / "checkpoints" / "step-000002" / "state.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "state": stored["state"].replace("2", "3")}))
    with pytest.raises(CheckpointError, match="hash"):
        run_folder._read_state(file)
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        folder.newest_checkpoint(verify)
