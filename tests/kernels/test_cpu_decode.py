"""How the C++ decode step is built, and the layout of its weights (what it computes: tests/model/test_decoding.py)."""

import os
import subprocess
import sys

import pytest
import torch

from k3rl.kernels.cpu import Panels, build
from k3rl.model import Model, preset


@pytest.mark.parametrize("shape", [(1, 1), (31, 7), (32, 5), (33, 64), (3, 70, 20)])
def test_panels_hold_the_matrix_and_zeros(shape):
    weight = torch.randn(shape)
    panels = Panels(weight)
    assert torch.equal(panels.weight(), weight)
    assert panels.data.shape[-1] == 32
    assert panels.data.double().square().sum().item() == pytest.approx(weight.double().square().sum().item())
    first = panels.data[..., 0, :, 0]  # inputs of the first output, one after another
    assert torch.equal(first, weight[..., 0, :])


@pytest.fixture
def fresh_build(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path
    build.library.cache_clear()


def test_without_a_compiler_torch_decodes_and_one_warning_says_so(fresh_build, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match=r"falls back to torch.*no-such-compiler.*install g\+\+"):
        assert build.library() is None
    assert build.library() is None  # filterwarnings=error: a second warning would raise


def test_processes_that_build_at_once_leave_one_library(fresh_build):
    code = "from k3rl.kernels.cpu import library; assert library() is not None"
    environment = {**os.environ, "XDG_CACHE_HOME": str(fresh_build)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    (kept,) = (fresh_build / "k3rl").iterdir()
    assert kept.suffix == ".so"


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_rows_are_bitwise_the_same_however_many_threads_share_them(slots):
    torch.manual_seed(0)
    model = Model(preset("nano").with_vocabulary(50))
    caches = [model.new_cache(slots=7, max_context=128) for _ in range(2)]
    assert model.native is not None
    for tokens in torch.randint(0, 50, (80, slots)):
        outs = []
        for threads, cache in enumerate(caches, start=1):
            torch.set_num_threads(threads)
            outs.append(model.decode(tokens, cache, torch.arange(slots)))
        torch.set_num_threads(1)
        assert torch.equal(outs[0].logits, outs[1].logits)
        assert torch.equal(outs[0].experts, outs[1].experts)
        assert torch.equal(outs[0].selected, outs[1].selected)
