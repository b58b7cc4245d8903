"""Index scores, the selection rule and attention against loops that follow the text."""

from fractions import Fraction

import pytest
import torch

from k3rl.kernels.sparse_attention import attend, attend_blocks, attend_latent, index_scores, select, selection_mask


def rounded(value: Fraction) -> int:
    """Half to even, in exact arithmetic (Python's round of a Fraction)."""
    return round(value)


def chosen(row: list[float], length: int, top_k: int) -> list[int]:
    """The rule by sorting, exact: grid of 2^-12 of the largest causal magnitude, ties to the later position."""
    causal = [Fraction(x) for x in row[:length]]
    largest = max(abs(x) for x in causal)
    grid = [rounded(x / largest * 4096) if largest else 0 for x in causal]
    best = sorted(range(length), key=lambda t: (grid[t], t), reverse=True)[:top_k]
    return sorted(best)


@pytest.mark.parametrize(("positions", "top_k"), [(5, 8), (8, 8), (40, 8), (97, 1), (97, 30)])
def test_selection_follows_the_rule(positions: int, top_k: int):
    torch.manual_seed(positions)
    scores = torch.randn(positions, positions, dtype=torch.float64)
    scores[::2] = (scores[::2] * 3).round()  # rows full of ties
    scores[3] = 0.0
    causal = torch.ones(positions, positions, dtype=torch.bool).tril()
    got = select(scores, causal, top_k)
    for row in range(positions):
        wanted = chosen(scores[row].tolist(), row + 1, top_k)
        assert got[row].tolist() == wanted + [-1] * (min(top_k, positions) - len(wanted))


def test_scores_closer_than_the_grid_are_a_tie_that_the_later_position_wins():
    scores = torch.tensor([[1.0, 0.5 + 1e-5, 0.5, 0.1]])
    causal = torch.ones(1, 4, dtype=torch.bool)
    assert select(scores, causal, 2).tolist() == [[0, 2]]


def test_future_scores_set_no_grid_and_are_never_chosen():
    scores = torch.tensor([[0.1, 0.2, 1e9, float("nan")]])
    causal = torch.tensor([[True, True, False, False]])
    assert select(scores, causal, 3).tolist() == [[0, 1, -1]]
    assert select(scores, causal, 1).tolist() == [[1]]


def test_index_scores_are_the_sum_over_heads():
    torch.manual_seed(0)
    q, k, w = torch.randn(2, 5, 3, 4), torch.randn(2, 7, 4), torch.randn(2, 5, 3)
    wanted = torch.zeros(2, 5, 7)
    for b in range(2):
        for t in range(5):
            for s in range(7):
                wanted[b, t, s] = sum(w[b, t, j] * max(0.0, float(q[b, t, j] @ k[b, s])) for j in range(3))
    torch.testing.assert_close(index_scores(q, k, w), wanted, rtol=1e-5, atol=1e-5)


def test_a_selection_mask_reads_rows_of_minus_one_as_everything():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    selected = torch.tensor([[-1, -1], [1, -1], [0, 2], [-1, -1]])
    wanted = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]
    assert selection_mask(selected, causal).int().tolist() == wanted


def naive(q, k, v, allowed, scale):
    """Attention of one head, query by query."""
    rows = []
    for t in range(q.shape[0]):
        read = allowed[t].nonzero().squeeze(-1)
        rows.append(torch.softmax(k[read] @ q[t] * scale, dim=0) @ v[read])
    return torch.stack(rows)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("length", [6, 64, 130])
def test_both_forms_of_attention_and_their_gradients_equal_the_query_loop(length: int, masked: bool):
    torch.manual_seed(length)
    q, k = (torch.randn(2, 2, length, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(2, 2, length, 4, dtype=torch.float64, requires_grad=True)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    if masked:
        allowed = (torch.rand(2, length, length) < 0.4) & causal | torch.eye(length, dtype=torch.bool)
    else:
        allowed = causal.expand(2, -1, -1)
    outputs, mass = attend(q, k, v, allowed, 0.3)
    blocks = attend_blocks(q, k, v, allowed if masked else None, 0.3)
    heads = [naive(q[b, h], k[b, h], v[b, h], allowed[b], 0.3) for b in range(2) for h in range(2)]
    wanted = torch.stack(heads).unflatten(0, (2, 2))
    torch.testing.assert_close(outputs, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mass @ v, outputs, rtol=1e-12, atol=1e-12)
    assert mass.masked_select(~allowed.unsqueeze(1)).eq(0).all()
    torch.testing.assert_close(blocks, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(outputs)
    expected = torch.autograd.grad((wanted * weight).sum(), (q, k, v))
    for form in (outputs, blocks):
        for got, want in zip(torch.autograd.grad((form * weight).sum(), (q, k, v)), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


def test_absorbed_attention_reads_values_from_the_latents():
    torch.manual_seed(0)
    q, latents = torch.randn(3, 2, 6), torch.randn(3, 9, 6)
    allowed = torch.rand(3, 9) < 0.5
    allowed[:, 0] = True
    got = attend_latent(q, latents, allowed, 4, 0.5)
    for b in range(3):
        for h in range(2):
            want = naive(q[b, h : h + 1], latents[b], latents[b, :, :4], allowed[b : b + 1], 0.5)[0]
            torch.testing.assert_close(got[b, h], want)
