"""Reference sets and a nano model with awkward random weights."""

from __future__ import annotations

import pytest
import torch
from model_cases import DATA, SETS, roughen
from safetensors.torch import load_file

from k3rl.kernels.cpu import library
from k3rl.model import Model, preset


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def expected() -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(DATA / name / "expected.safetensors") for name in SETS}


@pytest.fixture
def nano() -> Model:
    torch.manual_seed(0)
    return roughen(Model(preset("nano").with_vocabulary(200)))


@pytest.fixture(params=["c++", "torch"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What decodes: the C++ step (float32; other dtypes are torch's either way), or torch as without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr("k3rl.model.cpu_decode.library", lambda: None)
    else:
        assert library() is not None, "these tests need a C++ compiler"
    return request.param
