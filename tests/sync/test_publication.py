"""A publication arrives whole and exact; whatever is broken on the way is told by name."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from published_models import CANARY, random_model

from k3rl.errors import SyncError
from k3rl.kernels.cpu import PackedPanels
from k3rl.kernels.mxfp4 import dequantize, quantize
from k3rl.model import preset
from k3rl.sync import apply, publish
from k3rl.sync.manifest import describe
from k3rl.sync.verify import product

EXPERT = "language_model.model.layers.2.block_sparse_moe.experts.5.w2.weight"
NORM = "language_model.model.norm.weight"


def resigned(publication, **changes):
    """A publication whose digest fits: what is broken is not the digest."""
    changed = dataclasses.replace(publication, **changes)
    digest = describe(changed.version, changed.manifest, changed.products, changed.canaries)
    return dataclasses.replace(changed, digest=digest)


def flipped(publication, name, byte=0):
    payload = dict(publication.payload)
    payload[name] = payload[name].copy()
    payload[name][byte] ^= 1
    return dataclasses.replace(publication, payload=payload)


def test_an_engine_holds_exactly_what_the_learner_multiplies_by(learner, publication, held):
    apply(publication, held)
    working = held.working_weights()
    state = learner.state_dict()
    w2 = state["layers.2.feed_forward.experts.w2"]
    assert torch.equal(working[EXPERT], dequantize(*quantize(w2))[5])
    assert torch.equal(working[NORM], state["norm"])
    tokens = torch.arange(50)
    with torch.no_grad():
        assert torch.equal(held(tokens).logits, learner(tokens).logits)


def test_the_payload_is_the_public_checkpoint(learner, publication):
    """Packed bytes for experts by an independent call of the quantizer, fp32 for the rest."""
    w2 = learner.state_dict()["layers.2.feed_forward.experts.w2"]
    packed, scales = quantize(w2)
    assert publication.payload[f"{EXPERT}_packed"].tobytes() == packed[5].numpy().tobytes()
    assert publication.payload[f"{EXPERT}_scale"].tobytes() == scales[5].numpy().tobytes()
    assert publication.payload[NORM].tobytes() == learner.state_dict()["norm"].numpy().tobytes()
    assert sum(entry.dtype == "uint8" for entry in publication.manifest) == 3 * 8 * 3 * 2


def test_it_survives_a_read_only_store(publication, held):
    copy = pickle.loads(pickle.dumps(publication))
    for array in copy.payload.values():
        array.flags.writeable = False
    apply(copy, held)


@pytest.mark.parametrize("name", [f"{EXPERT}_packed", f"{EXPERT}_scale", NORM])
def test_a_flipped_bit_is_named(publication, held, name):
    with pytest.raises(SyncError, match=f"tensor {name} held by the model does not have the hash"):
        apply(flipped(publication, name), held)


def test_a_missing_an_extra_and_a_short_tensor_are_named(publication, held):
    payload = dict(publication.payload)
    del payload[NORM]
    with pytest.raises(SyncError, match=f"tensor {NORM} is announced but not shipped"):
        apply(dataclasses.replace(publication, payload=payload), held)
    payload = {**publication.payload, "x.bias": np.zeros(4, np.uint8)}
    with pytest.raises(SyncError, match=r"tensor x.bias is shipped but not announced"):
        apply(dataclasses.replace(publication, payload=payload), held)
    payload = {**publication.payload, NORM: publication.payload[NORM][:-4]}
    with pytest.raises(SyncError, match=f"tensor {NORM} has 508 bytes"):
        apply(dataclasses.replace(publication, payload=payload), held)


def test_a_tensor_dropped_before_the_manifest_was_made_is_named(publication, held):
    payload = {name: array for name, array in publication.payload.items() if name != NORM}
    manifest = tuple(entry for entry in publication.manifest if entry.name != NORM)
    with pytest.raises(SyncError, match=f"tensor {NORM} is not in the manifest"):
        apply(resigned(publication, payload=payload, manifest=manifest), held)


def test_a_manifest_that_was_changed_has_another_digest(publication, held):
    with pytest.raises(SyncError, match="version 8: the manifest does not have the digest"):
        apply(dataclasses.replace(publication, version=8), held)


def test_an_engine_that_keeps_its_old_weights_is_caught(publication, held, monkeypatch):
    monkeypatch.setattr(held, "load_published", lambda state: None)
    with pytest.raises(SyncError, match="does not have the hash"):
        apply(publication, held)


@pytest.mark.parametrize("layer", [1, 2])
def test_a_stale_working_layout_is_caught_by_its_product(publication, held, monkeypatch, layer):
    """The parameters are replaced, what decoding reads of one layer is not."""
    apply(publish(random_model(2), 6, CANARY), held)
    name = f"layers.{layer}.feed_forward.experts.w2"
    old = held.native.packed[name].codes.clone()
    damage_after_prepare(held, monkeypatch, lambda: held.native.packed[name].codes.copy_(old))
    with pytest.raises(SyncError, match=rf"weight .*layers\.{layer}\..*experts.* in the working layout"):
        apply(publication, held)


def test_a_transposed_expert_is_caught_by_its_product(publication, held, monkeypatch):
    def transpose():
        weights = held.layers[2].feed_forward.experts.weights()[1]
        held.native.packed["layers.2.feed_forward.experts.w2"].codes.copy_(
            PackedPanels(*quantize(weights.mT.contiguous())).codes
        )

    damage_after_prepare(held, monkeypatch, transpose)
    with pytest.raises(SyncError, match=r"weight .*layers\.2\..*w2\.weight in the working layout"):
        apply(publication, held)


def damage_after_prepare(model, monkeypatch, damage):
    prepare = model.prepare

    def prepare_and_damage():
        prepare()
        damage()

    monkeypatch.setattr(model, "prepare", prepare_and_damage)


def test_an_engine_one_version_old_is_caught_by_the_canary_alone(learner, publication, held):
    """A step of 1e-4 on every parameter, smaller than an optimizer's: its manifest passes for the new one's."""
    old = random_model(0)
    with torch.no_grad():
        for n, parameter in enumerate(old.parameters()):
            generator = torch.Generator().manual_seed(n)
            parameter.add_(torch.randn(parameter.shape, generator=generator).sign(), alpha=1e-4)
    stale = publish(old, 7, CANARY)
    with pytest.raises(SyncError, match="canary by forward"):
        apply(resigned(stale, canaries=publication.canaries), held)


def test_a_decode_path_that_differs_is_caught_by_the_canary(publication, held, monkeypatch):
    real = held.decode

    def decode(tokens, cache, active):
        step = real(tokens, cache, active)
        cache.layers[0].state.mul_(0.999)  # a state that is not kept exactly
        return step

    monkeypatch.setattr(held, "decode", decode)
    with pytest.raises(SyncError, match="canary by decoding"):
        apply(publication, held)


def test_a_decode_path_that_routes_elsewhere_is_caught_by_the_canary(publication, held, monkeypatch):
    real = held.decode

    def decode(tokens, cache, active):
        step = real(tokens, cache, active)
        return dataclasses.replace(step, experts=(step.experts + 1) % 8)

    monkeypatch.setattr(held, "decode", decode)
    with pytest.raises(SyncError, match="canary by decoding: other experts or positions are chosen at 22% of 72"):
        apply(publication, held)


def route_elsewhere(model, monkeypatch, prompts):
    """The first decoded token of the first `prompts` prompts is routed elsewhere, and all after it is wrong."""
    real, caches = model.decode, []

    def decode(tokens, cache, active):
        step = real(tokens, cache, active)
        first = not any(cache is seen for seen in caches)
        if first:
            caches.append(cache)
        if len(caches) > prompts:
            return step
        experts = (step.experts + 1) % 8 if first else step.experts
        return dataclasses.replace(step, experts=experts, logits=step.logits + torch.randn(step.logits.shape))

    monkeypatch.setattr(model, "decode", decode)


def test_decoding_that_could_not_be_compared_is_not_taken_for_verified(publication, held, monkeypatch):
    route_elsewhere(held, monkeypatch, prompts=2)
    with pytest.raises(SyncError, match="after 0, 0 decoded tokens of the prompts, too few to compare"):
        apply(publication, held)


def test_a_near_tie_in_one_prompt_leaves_the_other_to_compare(publication, held, monkeypatch):
    route_elsewhere(held, monkeypatch, prompts=1)
    apply(publication, held)


def test_a_filter_that_matches_no_expert_is_an_error(learner, monkeypatch):
    plain = {name: t for name, t in learner.state_for_publication().items() if not name.endswith(("_packed", "_scale"))}
    monkeypatch.setattr(learner, "state_for_publication", lambda: plain)
    with pytest.raises(SyncError, match=r"0 tensors match \*_packed, and the model has 72 quantized expert matrices"):
        publish(learner, 1, CANARY)


def test_another_architecture_is_refused_before_anything_is_replaced(publication):
    torch.manual_seed(0)
    other = type(random_model(0))(preset("nano").with_vocabulary(90))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(SyncError, match=r"tensor language_model.*held as float32 \(90, 128\), published as"):
        apply(publication, other)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_float64_models_agree_to_float64(held):
    apply(publish(random_model(3, torch.float64), 1, CANARY), random_model(4, torch.float64))


def test_a_product_is_the_written_out_sum():
    weight = torch.arange(6.0).view(2, 3)
    stream = np.random.RandomState(4213594085)  # crc32 of b"w.x"
    u, x = stream.uniform(-1, 1, 2), stream.uniform(-1, 1, 3)
    expected = sum(u[i] * float(weight[i, j]) * x[j] for i in range(2) for j in range(3))
    value, magnitude = product("w.x", weight)
    assert value == pytest.approx(expected, rel=1e-13)
    assert magnitude >= abs(value)
