"""The indexer's training signal against its formula, and that it reaches nothing else."""

import pytest
import torch
from model_cases import bounds, random_tokens, roughen

from k3rl.model import Model, preset

LENGTHS = (90, 40)


@pytest.fixture
def exact() -> Model:
    torch.manual_seed(0)
    return roughen(Model(preset("nano").with_vocabulary(200))).double()


def attention_inputs(model: Model, tokens: torch.Tensor, cu: torch.Tensor, layer: int):
    """Queries and keys [N, h, qk] of one full-attention layer, caught on their way into its projections."""
    attention = model.layers[layer].attention
    caught = []
    original = attention._project
    attention._project = lambda x: caught.append(original(x)) or caught[-1]
    with torch.no_grad():
        model(tokens, cu)
    attention._project = original
    _, q, c, r, _ = caught[0]
    nope = attention.mla.nope_dim
    up = attention.kv_b.unflatten(0, (attention.mla.num_heads, -1))[:, :nope]
    keys = torch.cat((torch.einsum("hdr,nr->nhd", up, c), r.unsqueeze(1).expand(-1, q.shape[1], -1)), dim=-1)
    return q.detach(), keys.detach()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_is_the_divergence_of_head_summed_attention_from_index_scores(exact: Model, sparse: bool):
    exact.sparse = sparse
    tokens, cu = random_tokens(sum(LENGTHS)), bounds(*LENGTHS)
    with torch.no_grad():
        out = exact(tokens, cu, want=("indexer_loss", "index_scores"))
    total = 0.0
    for place, layer in enumerate(exact.config.dsa_layers):
        q, k = attention_inputs(exact, tokens, cu, layer)
        scores = out.taps["index_scores"][place]
        for b, (start, end) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
            for t in range(end - start):
                read = torch.arange(t + 1)
                if sparse and t >= exact.config.dsa.top_k:
                    read = out.selected[start + t, place]
                logits = torch.einsum("hd,thd->ht", q[start + t], k[start + read]) * exact.config.mla.qk_dim**-0.5
                target = logits.softmax(-1).sum(0)
                target = target / target.sum()
                total += (target * (target.log() - scores[b, t, read].log_softmax(-1))).sum() / sum(LENGTHS)
    assert out.indexer_loss.item() == pytest.approx(total.item(), rel=1e-9)


def test_only_the_indexer_is_trained_by_it(exact: Model):
    exact.sparse = False
    exact(random_tokens(60)[None], want=("indexer_loss",)).indexer_loss.backward()
    moved = {name for name, p in exact.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moved == {name for name, _ in exact.named_parameters() if ".indexer." in name}


def test_the_model_is_not_trained_through_the_indexer(exact: Model):
    exact(random_tokens(100)[None]).logits.sum().backward()
    for name, parameter in exact.named_parameters():
        if not name.startswith("layers.0.attention_mix."):  # the first block reads the embedding itself
            assert (".indexer." in name) == (parameter.grad is None), name


def test_warm_up_teaches_the_indexer_where_attention_looks(nano: Model):
    """Overfitting one batch, the divergence falls well below that of uniform scores."""
    nano.sparse = False
    tokens, cu = random_tokens(240), bounds(120, 120)
    own = [p.requires_grad_(".indexer." in name) for name, p in nano.named_parameters()]
    optimizer = torch.optim.Adam([p for p in own if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(40):
        loss = nano(tokens, cu, want=("indexer_loss",)).indexer_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
