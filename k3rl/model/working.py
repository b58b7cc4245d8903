"""The weights as decoding reads them, back under their public names: what a publication is verified against."""

from __future__ import annotations

import torch
from torch import Tensor

from k3rl.model.cpu_decode import CpuDecoder
from k3rl.model.mla import Mla
from k3rl.model.moe import LatentMoe
from k3rl.model.names import slots
from k3rl.model.tensors import view
from k3rl.model.transformer import Transformer


def working_weights(model: Transformer, native: CpuDecoder | None) -> dict[str, Tensor]:
    """Public name (experts: `X.weight`, unpacked) -> the values that `decode` multiplies by, of the public shape.

    Where `prepare` laid a weight out anew, this reads that layout and not the parameter, so that a layout left behind
    by an update shows.
    """
    state = dict(model.state_dict())
    state.update(_torch_layout(model) if native is None else native.working())
    return {slot.name: view(state, slot) for slot in slots(model.config)}


def _torch_layout(model: Transformer) -> dict[str, Tensor]:
    state = {}
    for owner, module in model.named_modules():
        if isinstance(module, LatentMoe):
            state[f"{owner}.experts.w13"] = module.decode_w13
            state[f"{owner}.experts.w2"] = module.decode_w2.mT
        elif isinstance(module, Mla):
            state[f"{owner}.kv_b"] = torch.cat((module.w_uk, module.w_uv.mT), dim=1).flatten(0, 1)
    return state
