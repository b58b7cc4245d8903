"""One weights version on its way from the learner to the engines: `publish` at one end, `apply` at the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.errors import SyncError
from k3rl.sync.manifest import Canary, Entry, byte_view, describe, dtype_name, sha256
from k3rl.sync.model import PublishedModel
from k3rl.sync.verify import (
    check_bytes,
    check_canaries,
    check_fit,
    check_working_layout,
    multiplied_values,
    next_logprobs,
    product,
    require_quantized_experts,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """A verified-by-itself weights version. Arrays may be read-only views (Ray's object store ships them uncopied).

    payload: name -> uint8 [bytes]. products: name of a weight -> u^T W x in float64 with vectors drawn from the name
    (k3rl.sync.verify.product), of the values the learner multiplies by. digest: sha256 over all but the payload, whose
    bytes the manifest's hashes cover.
    """

    version: int
    manifest: tuple[Entry, ...]
    payload: Mapping[str, NDArray[np.uint8]] = field(repr=False)
    products: Mapping[str, float] = field(repr=False)
    canaries: tuple[Canary, ...] = field(repr=False)
    digest: str

    def tensors(self) -> dict[str, Tensor]:
        """The payload as tensors of their own (copies: views of a shared store must not outlive it).

        Raises SyncError for a damaged manifest, and for a tensor that is missing, not announced or of a wrong size.
        """
        if describe(self.version, self.manifest, self.products, self.canaries) != self.digest:
            raise SyncError(f"weights version {self.version}: the manifest does not have the digest {self.digest[:12]}")
        announced = {entry.name for entry in self.manifest}
        if differing := announced ^ self.payload.keys():
            name = min(differing)
            where = "announced but not shipped" if name in announced else "shipped but not announced"
            raise SyncError(f"weights version {self.version}: tensor {name} is {where}")
        return {entry.name: self._tensor(entry) for entry in self.manifest}

    def apply_to(self, model: PublishedModel) -> None:
        """`apply(self, model)`: how an engine, which does not import sync, takes the version."""
        apply(self, model)

    def _tensor(self, entry: Entry) -> Tensor:
        tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        raw, target = self.payload[entry.name], byte_view(tensor)
        if raw.shape != target.shape:
            raise SyncError(
                f"weights version {self.version}: tensor {entry.name} has {raw.size} bytes, "
                f"{entry.dtype} {entry.shape} has {target.size}"
            )
        target[:] = raw
        return tensor


@torch.no_grad()
def publish(model: PublishedModel, version: int, canary_tokens: Sequence[int]) -> Publication:
    """Read the weights out of the learner's model, quantized once, with everything to verify them by.

    `canary_tokens` is a prompt, whose last 16 tokens engines decode one by one; backwards it is a second one. Raises
    SyncError if an MXFP4 model has no quantized experts.
    """
    held = model.state_for_publication()
    device = next(iter(held.values())).device
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in held.items()}
    require_quantized_experts(model, state)
    manifest = tuple(
        Entry(name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor), sha256=sha256(tensor))
        for name, tensor in sorted(state.items())
    )
    products = {name: product(name, weight)[0] for name, weight in multiplied_values(state).items()}
    tokens = torch.tensor(canary_tokens, dtype=torch.int64, device=device)
    canaries = tuple(_canary(model, prompt) for prompt in (tokens, tokens.flip(0)))
    return Publication(
        version=version,
        manifest=manifest,
        payload={name: byte_view(tensor).copy() for name, tensor in state.items()},
        products=products,
        canaries=canaries,
        digest=describe(version, manifest, products, canaries),
    )


def _canary(model: PublishedModel, tokens: Tensor) -> Canary:
    out = model(tokens)
    return Canary(
        tokens=tokens.cpu().numpy(),
        logprobs=next_logprobs(out.logits[:-1], tokens),
        experts=out.experts.cpu().numpy().astype(np.int64),
        selected=out.selected.cpu().numpy().astype(np.int64),
    )


@torch.no_grad()
def apply(publication: Publication, model: PublishedModel) -> None:
    """Replace the model's weights and verify what it holds afterwards; the model serves the version only if this
    returns. Raises SyncError naming the tensor; the model may then hold a mixture."""
    state = publication.tensors()
    require_quantized_experts(model, state)
    check_fit(model, publication.manifest)
    model.load_published(state)
    check_bytes(model, publication.manifest)
    check_working_layout(model, publication.products)
    check_canaries(model, publication.canaries)
