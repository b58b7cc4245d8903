"""Models on disk: safetensors with the public names, with or without an index, experts plain or MXFP4-packed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from k3rl.errors import CheckpointError
from k3rl.kernels.mxfp4 import dequantize, quantize
from k3rl.model.config import ModelConfig
from k3rl.model.moe import Experts
from k3rl.model.names import Slot, slots
from k3rl.model.transformer import Model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32) -> Model:
    """The model of a folder with `config.json` and safetensors (one file, or shards with an index).

    Packed experts are dequantized exactly and keep their bytes. CheckpointError names the file or tensor at fault.
    """
    folder = Path(folder)
    config = load_config(folder)
    with torch.device("meta"):
        model = Model(config)
    model = model.to_empty(device="cpu").to(dtype)
    write_tensors(model, read_tensors(folder), source=str(folder))
    return model


def load_config(folder: str | Path) -> ModelConfig:
    """The ModelConfig of a folder's `config.json`."""
    path = Path(folder) / "config.json"
    try:
        public = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); give a folder with a model") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error
    return ModelConfig.from_public(public)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, by public name."""
    index = folder / INDEX
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [WEIGHTS]
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index with a weight_map ({error})") from error
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.exists():
            raise CheckpointError(f"{path}: missing; copy the whole model folder")
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: truncated or corrupt ({error}); copy it again") from error
    return tensors


def write_tensors(model: Model, tensors: Mapping[str, Tensor], *, source: str) -> None:
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


def _carry(model: Model, carried: Mapping[str, list[tuple[Tensor, Tensor]]]) -> None:
    """Keep packed bytes in the stacked layout of the weights they belong to."""
    for key, parts in carried.items():
        owner, _, name = key.rpartition(".")
        experts = model.get_submodule(owner)
        assert isinstance(experts, Experts)
        count = experts.w13.shape[0]
        stacked = [torch.stack(side).unflatten(0, (count, -1)).flatten(1, 2) for side in zip(*parts, strict=True)]
        experts.packed[name] = (stacked[0], stacked[1])


def public_tensors(model: Model, *, packed: bool) -> dict[str, Tensor]:
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


def _packed_state(model: Model) -> dict[str, tuple[Tensor, Tensor]]:
    """Packed bytes of every stack of experts: those it was loaded with while its values are still theirs (another
    scale rule may have made them), else freshly quantized."""
    result = {}
    for owner, experts in model.named_modules():
        if not isinstance(experts, Experts):
            continue
        for name in ("w13", "w2"):
            weight = getattr(experts, name).detach()
            carried = experts.packed.get(name)
            if carried is None or not torch.equal(dequantize(*carried, dtype=weight.dtype), weight):
                carried = quantize(weight, name=f"{owner}.{name}")
            result[f"{owner}.{name}"] = carried
    return result


def save_model(model: Model, folder: str | Path, *, packed: bool) -> None:
    """Write `config.json` and `model.safetensors` with public names; the weights file appears whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    public = model.config.to_public()
    tensors = {name: value.detach().contiguous() for name, value in public_tensors(model, packed=packed).items()}
    partial = folder / f"{WEIGHTS}.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(public, indent=2) + "\n")
