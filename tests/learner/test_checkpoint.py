"""Checkpoints: whole or absent, and every kind of damage is told with the file's name."""

import errno
import json
from pathlib import Path

import pytest
import torch

from k3rl.errors import CheckpointError, InfrastructureError
from k3rl.learner import checkpoint

TENSORS = {"master.a": torch.arange(6.0).reshape(2, 3), "rng": torch.tensor([1, 255], dtype=torch.uint8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "step-3"
    checkpoint.write(folder, TENSORS, {"step": 3})
    return folder


def test_what_is_written_is_read(folder: Path) -> None:
    tensors, values = checkpoint.read(folder)
    assert values == {"step": 3}
    assert tensors.keys() == TENSORS.keys()
    assert all(tensors[name].equal(TENSORS[name]) for name in TENSORS)
    checkpoint.verify(folder)
    assert [p.name for p in folder.parent.iterdir()] == ["step-3"], "nothing partial is left"


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.VALUES])
def test_truncated_corrupt_and_missing_files_are_named(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=rf"{name} has {len(whole) - 1} bytes of {len(whole)}: truncated"):
        checkpoint.read(folder)
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{name} does not match its hash"):
        checkpoint.read(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoint.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        json.dumps({"format": 99, "files": {}}),
        json.dumps({"format": 1, "files": {checkpoint.TENSORS: 3}}),
    ],
)
def test_a_damaged_manifest_is_named(folder: Path, text: str) -> None:
    (folder / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=checkpoint.MANIFEST):
        checkpoint.read(folder)


def test_a_folder_without_manifest_is_not_complete(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="not a complete checkpoint"):
            checkpoint.verify(place)


def test_the_leftover_of_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / ("step-3" + checkpoint.PARTIAL)
    partial.mkdir()
    (partial / checkpoint.TENSORS).write_bytes(b"half")
    checkpoint.write(tmp_path / "step-3", TENSORS, {})
    checkpoint.verify(tmp_path / "step-3")
    assert not partial.exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(InfrastructureError, match="step-3 could not be written: the disk is full"):
        checkpoint.write(tmp_path / "step-3", TENSORS, {})
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="never written over"):
        checkpoint.write(folder, TENSORS, {})
