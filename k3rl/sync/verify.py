"""Checks of what a model holds after a publication was applied: bytes, working layout, log-probabilities.

Each raises SyncError with the tensor's name. Legend as in k3rl.sync.model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.errors import SyncError
from k3rl.kernels.mxfp4 import dequantize
from k3rl.sync.manifest import PACKED, SCALE, Canary, Entry, dtype_name, sha256
from k3rl.sync.model import PublishedModel

# Bars on |log p - log p of the learner| over the canary (decisions.md, fp32); float64 models are held to 1e-9.
MEAN_BAR, MAX_BAR, FLOAT64_BAR = 5e-5, 5e-4, 1e-9
_DECODED = 16  # tokens at a canary's end that are decoded one by one, after a prefill of the others
_LEAST_DECODED = 8  # of them to be compared before decoding counts as verified
# Two forms of one sum may choose differently at near ties, which are rare; a wrong layout does so at most tokens.
_DIFFERING_BAR = 0.1
_PRODUCT_TOLERANCE = 1e-11  # of sum |u| |W| |x|: float64 sums in another order


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replay:
    """The learner's choices, in the form a model's forward takes."""

    experts: Tensor
    selected: Tensor


def product(name: str, weight: Tensor) -> tuple[float, float]:
    """(u^T W x, sum |u| |W| |x|) in float64, W being `weight` as [rows, last axis]; u and x are uniform in (-1, 1),
    drawn from the weight's name by the frozen stream of numpy's RandomState."""
    matrix = weight.detach().to("cpu", torch.float64).reshape(-1, weight.shape[-1] if weight.ndim else 1).numpy()
    stream = np.random.RandomState(zlib.crc32(name.encode()))
    left, right = stream.uniform(-1, 1, matrix.shape[0]), stream.uniform(-1, 1, matrix.shape[1])
    return float(left @ matrix @ right), float(abs(left) @ abs(matrix) @ abs(right))


def multiplied_values(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name of a weight -> the values the model multiplies by: packed pairs are dequantized, the rest is as it is."""
    values = {}
    for name, tensor in state.items():
        if name.endswith(PACKED):
            weight = name.removesuffix(PACKED)
            values[weight] = dequantize(tensor, state[weight + SCALE])
        elif not name.endswith(SCALE):
            values[name] = tensor
    return values


def require_quantized_experts(model: PublishedModel, names: Mapping[str, Tensor]) -> None:
    """An MXFP4 model publishes three packed matrices for every routed expert: a filter that missed them is an error."""
    moe = model.config.moe
    expected = len(model.config.moe_layers) * moe.num_experts * 3 if moe.expert_format == "mxfp4" else 0
    packed = {name.removesuffix(PACKED) for name in names if name.endswith(PACKED)}
    if len(packed) != expected:
        raise SyncError(
            f"{len(packed)} tensors match *{PACKED}, and the model has {expected} quantized expert matrices "
            f"({len(model.config.moe_layers)} MoE layers x {moe.num_experts} experts x 3, {moe.expert_format})"
        )
    for weight in sorted(packed):
        if weight + SCALE not in names:
            raise SyncError(f"tensor {weight}{PACKED} has no {weight}{SCALE} beside it")


def check_fit(model: PublishedModel, manifest: tuple[Entry, ...]) -> None:
    """Names, shapes and dtypes of the manifest are those of the model, before anything is replaced."""
    held = model.state_for_publication()
    announced = {entry.name for entry in manifest}
    if differing := announced ^ held.keys():
        name = min(differing)
        raise SyncError(f"tensor {name} is {'not in the model' if name in announced else 'not in the manifest'}")
    for entry in manifest:
        tensor = held[entry.name]
        if (tuple(tensor.shape), dtype_name(tensor)) != (entry.shape, entry.dtype):
            raise SyncError(
                f"tensor {entry.name} is held as {dtype_name(tensor)} {tuple(tensor.shape)}, "
                f"published as {entry.dtype} {entry.shape}"
            )


def check_bytes(model: PublishedModel, manifest: tuple[Entry, ...]) -> None:
    """The tensors that the model holds, hashed again, are those of the manifest."""
    held = model.state_for_publication()
    for entry in manifest:
        if sha256(held[entry.name]) != entry.sha256:
            raise SyncError(f"tensor {entry.name} held by the model does not have the hash of its publication")


def check_working_layout(model: PublishedModel, products: Mapping[str, float]) -> None:
    """Multiply what decoding really reads by a random vector and compare with the learner's product."""
    working = model.working_weights()
    if differing := products.keys() ^ working.keys():
        raise SyncError(f"weight {min(differing)} is not among both the learner's products and the working weights")
    for name, weight in working.items():
        value, magnitude = product(name, weight)
        if not abs(value - products[name]) <= _PRODUCT_TOLERANCE * magnitude:
            raise SyncError(
                f"weight {name} in the working layout: its random-vector product is {value:.9g}, "
                f"the learner's is {products[name]:.9g}"
            )


def next_logprobs(logits: Tensor, tokens: Tensor) -> NDArray[np.float64]:
    """log p of tokens[1:] from the logits [T-1, V] before them, float64 [T-1]."""
    logp = logits.to(torch.float64).log_softmax(-1)
    return logp.gather(1, tokens[1:, None])[:, 0].cpu().numpy()


def check_canaries(model: PublishedModel, canaries: Sequence[Canary]) -> None:
    """Log-probabilities of fixed prompts: by the forward with the learner's choices replayed, and as an engine computes
    them, there up to the first token at which it chose other experts or positions by itself. A near tie early in one
    prompt leaves too little of it to say anything: then the next one has to do."""
    counts = []
    for canary in canaries:
        counts.append(_decoded_alike(model, canary))
        if counts[-1] >= _LEAST_DECODED:
            return
    raise SyncError(
        f"canary by decoding: other experts or positions are chosen after {', '.join(map(str, counts))} decoded "
        f"tokens of the prompts, too few to compare (at least {_LEAST_DECODED}): the engine does not serve this version"
    )


def _decoded_alike(model: PublishedModel, canary: Canary) -> int:
    """How many decoded tokens of the prompt could be compared. Raises SyncError for any that differs."""
    tokens = torch.from_numpy(canary.tokens.copy())
    experts, selected = torch.from_numpy(canary.experts.copy()), torch.from_numpy(canary.selected.copy())
    forward = model(tokens, replay=_Replay(experts=experts, selected=selected)).logits
    _compare("forward", next_logprobs(forward[:-1], tokens), canary, forward.dtype)
    split = max(1, len(tokens) - _DECODED)
    logits, own_experts, own_selected = _prefill_and_decode(model, tokens, split)
    same = (own_experts.sort(-1).values == experts.sort(-1).values).flatten(1).all(-1)
    same &= (own_selected == selected).flatten(1).all(-1)
    if (differing := 1 - same.double().mean().item()) > _DIFFERING_BAR:
        raise SyncError(
            f"canary by decoding: other experts or positions are chosen at {differing:.0%} of {len(tokens)} tokens "
            f"(bar {_DIFFERING_BAR:.0%}): the engine does not serve this version"
        )
    count = int(same.to(torch.int64).cumprod(0)[:-1].sum())
    if count:
        _compare("decoding", next_logprobs(logits[:count], tokens[: count + 1]), canary, forward.dtype)
    return max(0, count - split)


def _prefill_and_decode(model: PublishedModel, tokens: Tensor, split: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, experts and selected positions of a prompt [T], its tokens from `split` on decoded one by one."""
    snapshot, prompt = model.prefill(tokens[:split])
    cache, slot = model.new_cache(slots=1, max_context=len(tokens)), torch.zeros(1, dtype=torch.int64)
    cache.load(0, snapshot)
    steps = [prompt, *(model.decode(tokens[t : t + 1], cache, slot) for t in range(split, len(tokens)))]
    return (
        torch.cat([step.logits for step in steps]),
        torch.cat([step.experts for step in steps]),
        torch.cat([step.selected for step in steps]),
    )


def _compare(form: str, logprobs: NDArray[np.float64], canary: Canary, dtype: torch.dtype) -> None:
    difference = np.abs(logprobs - canary.logprobs[: len(logprobs)])
    mean_bar, max_bar = (FLOAT64_BAR, FLOAT64_BAR) if dtype == torch.float64 else (MEAN_BAR, MAX_BAR)
    mean, largest = float(difference.mean()), float(difference.max())
    if not (mean < mean_bar and largest < max_bar):
        raise SyncError(
            f"canary by {form}: |log p - learner's log p| has mean {mean:.2g} (bar {mean_bar:g}) and maximum "
            f"{largest:.2g} (bar {max_bar:g}) over {len(difference)} tokens: the engine does not serve this version"
        )
