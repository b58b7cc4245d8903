"""A model's state as public tensors, and back: splitting and stacking, packing and unpacking, checking shapes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from k3rl.errors import CheckpointError
from k3rl.kernels.mxfp4 import dequantize
from k3rl.model.moe import Experts
from k3rl.model.names import Slot, slots
from k3rl.model.transformer import Transformer


def write_tensors(model: Transformer, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Fill every parameter of `model` from public tensors. Routed experts may be plain (`X.weight`) or packed
    (`X.weight_packed`, `X.weight_scale`); packed bytes are kept in `Experts.packed` beside the exact values."""
    state = model.state_dict()
    packed = {name for name in tensors if name.endswith(".weight_packed")}
    carried: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for slot in slots(model.config):
        if slot.routed and f"{slot.name}_packed" in packed:
            codes, scales = (_tensor(tensors, f"{slot.name}_{part}", source) for part in ("packed", "scale"))
            _check_packed(slot, codes, scales, source)
            value = dequantize(codes, scales)
            carried.setdefault(slot.key, []).append((codes, scales))
        else:
            value = _tensor(tensors, slot.name, source)
        view(state, slot).copy_(_fit(slot, value, source))
    _carry(model, carried)


def view(state: Mapping[str, Tensor], slot: Slot) -> Tensor:
    """The part of the model's state that a public tensor is, as a view of the public shape."""
    tensor = state[slot.key]
    if slot.expert is not None:
        tensor = tensor[slot.expert]
    if slot.rows is not None:
        tensor = tensor[slot.rows[0] : slot.rows[1]]
    return tensor.view(slot.shape)


def _tensor(tensors: Mapping[str, Tensor], name: str, source: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"{source}: tensor {name} is missing; is this the model its config.json describes?")
    return tensors[name]


def _fit(slot: Slot, value: Tensor, source: str) -> Tensor:
    # Public K3 files pad A_log to a multiple of 128 heads: the first ones count.
    if slot.name.endswith("A_log") and value.ndim == 1 and value.shape[0] > slot.shape[0]:
        value = value[: slot.shape[0]]
    if tuple(value.shape) != slot.shape:
        raise CheckpointError(f"{source}: {slot.name} is {list(value.shape)}, the config says {list(slot.shape)}")
    return value


def _check_packed(slot: Slot, codes: Tensor, scales: Tensor, source: str) -> None:
    rows, columns = slot.shape
    for part, value, wanted in (("packed", codes, (rows, columns // 2)), ("scale", scales, (rows, columns // 32))):
        if tuple(value.shape) != wanted or value.dtype != torch.uint8:
            raise CheckpointError(
                f"{source}: {slot.name}_{part} is {value.dtype} {list(value.shape)}, wanted uint8 {list(wanted)}"
            )
    if bool((scales == 255).any()):
        raise CheckpointError(f"{source}: {slot.name}_scale holds NaN scales (byte 255)")


def _carry(model: Transformer, carried: Mapping[str, list[tuple[Tensor, Tensor]]]) -> None:
    """Keep packed bytes in the stacked layout of the weights they belong to."""
    for key, parts in carried.items():
        owner, _, name = key.rpartition(".")
        experts = model.get_submodule(owner)
        assert isinstance(experts, Experts)
        count = experts.w13.shape[0]
        stacked = [torch.stack(side).unflatten(0, (count, -1)).flatten(1, 2) for side in zip(*parts, strict=True)]
        experts.packed[name] = (stacked[0], stacked[1])


def public_tensors(model: Transformer, *, packed: bool) -> dict[str, Tensor]:
    """Every public tensor of the model; `packed` gives routed experts as MXFP4 bytes and scales."""
    state = model.state_dict()
    codes = _packed_state(model) if packed else {}
    result: dict[str, Tensor] = {}
    for slot in slots(model.config):
        if slot.routed and packed:
            for part, side in zip(("packed", "scale"), codes[slot.key], strict=True):
                rows = slice(*slot.rows) if slot.rows is not None else slice(None)
                result[f"{slot.name}_{part}"] = side[slot.expert, rows]
        else:
            result[slot.name] = view(state, slot)
    return result


def _packed_state(model: Transformer) -> dict[str, tuple[Tensor, Tensor]]:
    """Packed bytes of every stack of experts."""
    return {
        f"{owner}.{name}": experts.bytes(name, owner)
        for owner, experts in model.named_modules()
        if isinstance(experts, Experts)
        for name in ("w13", "w2")
    }
