"""What a publication says about its tensors, and how tensors become bytes and hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PACKED, SCALE = "_packed", "_scale"  # suffixes of a routed expert's two tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One tensor: `Entry(name="...w1.weight_packed", shape=(64, 32), dtype="uint8", sha256="...")`, the hash over its
    contiguous bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Canary:
    """A fixed prompt under the published weights, by the learner's forward.

    tokens int64 [T]; logprobs float64 [T-1], of tokens[1:]; experts int64 [T, M, K] and selected int64 [T, D, S], the
    learner's choices.
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    experts: NDArray[np.int64]
    selected: NDArray[np.int64]


def byte_view(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous CPU tensor, without a copy."""
    view: NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return view


def sha256(tensor: Tensor) -> str:
    """Hash of a tensor's contiguous bytes."""
    return hashlib.sha256(byte_view(tensor.detach().cpu().contiguous()).data).hexdigest()


def dtype_name(tensor: Tensor) -> str:
    """`float32` for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def describe(
    version: int, manifest: tuple[Entry, ...], products: Mapping[str, float], canaries: tuple[Canary, ...]
) -> str:
    """The digest of a publication: sha256 of a canonical text of its parts."""
    arrays = [array for c in canaries for array in (c.tokens, c.logprobs, c.experts, c.selected)]
    text = json.dumps(
        {
            "version": version,
            "manifest": [asdict(entry) for entry in manifest],
            "products": {name: value.hex() for name, value in products.items()},
            "canaries": [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays],
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()
