"""A checkpoint folder that is either whole or not there: temporary name, flush, rename, and a manifest of hashes.

Tensors are safetensors and values JSON: nothing in a checkpoint is ever unpickled.

    step-000040/manifest.json        {"format": 1, "files": {"tensors.safetensors": {"bytes": 812, "sha256": ...}, ...}}
    step-000040/tensors.safetensors  masters, moments, frozen tensors, RNG state
    step-000040/values.json          step counter and the like
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from k3rl.errors import CheckpointError, InfrastructureError
from k3rl.types import Json

FORMAT = 1
MANIFEST, TENSORS, VALUES = "manifest.json", "tensors.safetensors", "values.json"
PARTIAL = ".partial"


def write(folder: Path, tensors: Mapping[str, Tensor], values: Json) -> None:
    """Write the checkpoint `folder`, which must not exist. A crash at any moment leaves it absent, never damaged.

    Raises InfrastructureError if the disk is full or fails; what was written so far is removed.
    """
    if folder.exists():
        raise CheckpointError(
            f"{folder} exists already: a checkpoint is never written over; remove it or choose another"
        )
    partial = folder.with_name(folder.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed while writing
        partial.mkdir(parents=True)
        # safetensors refuses tensors that share memory, as whole tensors gathered from flat buffers may.
        safetensors.torch.save_file({name: t.contiguous().clone() for name, t in tensors.items()}, partial / TENSORS)
        (partial / VALUES).write_text(json.dumps(values, indent=1, sort_keys=True))
        files = {name: _describe(partial / name) for name in (TENSORS, VALUES)}
        (partial / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True))
        for name in (TENSORS, VALUES, MANIFEST):
            _flush(partial / name)
        _flush(partial)
        partial.rename(folder)
        _flush(folder.parent)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space" in str(error)
        reason = "the disk is full: free some space" if full else str(error)
        raise InfrastructureError(f"checkpoint {folder} could not be written: {reason}") from error


def read(folder: Path) -> tuple[dict[str, Tensor], Json]:
    """Tensors and values of a checkpoint, every byte checked first. Raises CheckpointError naming the bad file."""
    verify(folder)
    return safetensors.torch.load_file(folder / TENSORS), json.loads((folder / VALUES).read_text())


def verify(folder: Path) -> None:
    """Compare sizes and hashes of all files with the manifest. Raises CheckpointError naming the first that differs."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: not a complete checkpoint; use an earlier one")
    try:
        manifest = json.loads(path.read_text())
        files, form = dict(manifest["files"]), manifest["format"]
        if not all(isinstance(entry, dict) and "bytes" in entry for entry in files.values()):
            raise ValueError("a file without its size")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint's manifest ({error}); use an earlier checkpoint") from error
    if form != FORMAT:
        raise CheckpointError(f"{path} has format {form}, this version of k3rl reads {FORMAT}")
    for name in (TENSORS, VALUES):
        _compare(folder / name, files.get(name))


def _compare(path: Path, wanted: Json) -> None:
    if not path.is_file() or wanted is None:
        raise CheckpointError(f"{path} is missing; use an earlier checkpoint")
    found = path.stat().st_size
    if found != wanted["bytes"]:
        raise CheckpointError(f"{path} has {found} bytes of {wanted['bytes']}: truncated; use an earlier checkpoint")
    if _describe(path) != wanted:
        raise CheckpointError(f"{path} does not match its hash: corrupt; use an earlier checkpoint")


def _describe(path: Path) -> dict[str, Json]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
