"""Products with packed weights on the CPU against float64 products with the format's values."""

import pytest
import torch

from k3rl.kernels.cpu import PackedPanels, build
from k3rl.kernels.mxfp4 import dequantize, grouped_matmul, matmul, quantize

DTYPES = (torch.float32, torch.bfloat16)


def random_weights(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of weights whose blocks differ by many binades."""
    return quantize(torch.randn(shape) * torch.logspace(-3, 3, shape[-2])[:, None])


@pytest.mark.parametrize("shape", [(1, 32), (16, 32), (17, 64), (100, 96), (3, 33, 128)])
def test_panels_hold_the_same_bytes(shape):
    packed, scales = random_weights(*shape)
    panels = PackedPanels(packed, scales)
    assert panels.out == shape[-2]
    assert panels.inputs == shape[-1]
    for got, wanted in zip(panels.bytes(), (packed, scales), strict=True):
        assert torch.equal(got, wanted)


def relative_error(got: torch.Tensor, wanted: torch.Tensor, terms: torch.Tensor) -> float:
    """Of sums whose terms have the magnitudes `terms` in all."""
    return ((got - wanted).abs() / terms.clamp(min=1e-300)).max().item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out", "inputs"), [(1, 32), (16, 64), (37, 96), (130, 512)])
def test_products_of_any_number_of_rows(dtype, out, inputs):
    torch.manual_seed(0)
    packed, scales = random_weights(out, inputs)
    weight, panels = dequantize(packed, scales, torch.float64), PackedPanels(packed, scales)
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 11, 16, 64):
        x = torch.randn(rows, inputs).to(dtype)
        got = matmul(x, panels)
        assert got.dtype == torch.float32
        assert got.shape == (rows, out)
        if rows:
            wide = x.double()
            assert relative_error(got, wide @ weight.mT, wide.abs() @ weight.abs().mT) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_uneven_rows_and_none(dtype):
    torch.manual_seed(1)
    packed, scales = random_weights(5, 48, 64)
    weights = dequantize(packed, scales, torch.float64)
    counts = [3, 0, 9, 1, 0]
    offsets = torch.tensor([0, *counts]).cumsum(0)
    x = torch.randn(13, 64).to(dtype)
    owner = torch.repeat_interleave(torch.arange(5), torch.tensor(counts))
    wanted = torch.einsum("ni,noi->no", x.double(), weights[owner])
    terms = torch.einsum("ni,noi->no", x.double().abs(), weights[owner].abs())
    assert relative_error(grouped_matmul(x, PackedPanels(packed, scales), offsets), wanted, terms) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_whatever_stands_beside_it_and_however_many_threads(dtype):
    torch.manual_seed(2)
    panels = PackedPanels(*random_weights(75, 160))
    x = torch.randn(23, 160).to(dtype)
    together = matmul(x, panels)
    alone = torch.cat([matmul(row[None], panels) for row in x])
    assert torch.equal(together, alone)
    torch.set_num_threads(2)
    shared = matmul(x, panels)
    torch.set_num_threads(1)
    assert torch.equal(together, shared)


def test_extreme_scales_are_exact():
    """Every scale byte that is a number, with the values 0.5 and 6, times a power of two that keeps it in fp32."""
    scales = torch.arange(0, 255, dtype=torch.uint8).unsqueeze(1)
    packed = torch.zeros(255, 16, dtype=torch.uint8)
    packed[:, 0] = 1 | 7 << 4
    for column, value in ((0, 0.5), (1, 6.0)):
        x = torch.zeros(1, 32)
        for factor, rows in ((2.0**20, slice(0, 128)), (2.0**-20, slice(128, 255))):
            x[0, column] = factor
            got = matmul(x, PackedPanels(packed, scales))[0, rows].double()
            exponents = torch.arange(255, dtype=torch.float64)[rows] - 127
            assert torch.equal(got, factor * value * 2.0**exponents)


@pytest.mark.parametrize(
    ("rows", "offsets", "message"),
    [
        (torch.zeros(2, 32, dtype=torch.float64), [0, 2], "torch.float64"),
        (torch.zeros(2, 64), [0, 2], r"wanted \[N, 32\]"),
        (torch.zeros(2, 32), [0, 1, 2], r"wanted int64 \[2\]"),
        (torch.zeros(2, 32), [0, 3], "do not ascend from 0 to the 2 rows"),
    ],
)
def test_what_the_product_cannot_read_is_refused(rows, offsets, message):
    with pytest.raises(ValueError, match=message):
        grouped_matmul(rows, PackedPanels(*random_weights(4, 32)), torch.tensor(offsets))


def test_weights_that_are_no_numbers_are_refused():
    packed, scales = random_weights(4, 32)
    scales[2, 0] = 255
    with pytest.raises(ValueError, match="255"):
        PackedPanels(packed, scales)


@pytest.fixture
def other_build(tmp_path, monkeypatch):
    """Rebuild the library in a folder of its own, and forget it afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield monkeypatch
    build.library.cache_clear()


def test_without_a_compiler_torch_multiplies(other_build):
    other_build.setenv("CXX", "no-such-compiler")
    packed, scales = random_weights(2, 20, 64)
    x = torch.randn(5, 64)
    with pytest.warns(RuntimeWarning, match="no-such-compiler"):
        got = grouped_matmul(x, PackedPanels(packed, scales), torch.tensor([0, 2, 5]))
    weights = dequantize(packed, scales, torch.float64)
    wanted = torch.cat((x[:2].double() @ weights[0].mT, x[2:].double() @ weights[1].mT))
    assert relative_error(got, wanted, torch.ones_like(wanted) * wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("architecture", ["x86-64-v3", "x86-64"])
def test_machines_with_less_multiply_too(other_build, architecture):
    """AVX2, and what every x86 has: the same sums."""
    if "x86" not in build.platform.machine():
        pytest.skip("this machine is not an x86: it cannot run these builds")
    other_build.setattr(build, "FLAGS", tuple(f.replace("native", architecture) for f in build.FLAGS))
    test_products_of_any_number_of_rows(torch.float32, 37, 96)
    test_products_of_any_number_of_rows(torch.bfloat16, 37, 96)
