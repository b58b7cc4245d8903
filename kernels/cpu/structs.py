"""The structs of model.h, field by field, and the pointers in them.

A struct holds addresses only: whoever makes one keeps the tensors and structs it points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import torch
from torch import Tensor

from k3rl.errors import InfrastructureError
from k3rl.kernels.cpu.packed import PackedPanels
from k3rl.kernels.cpu.panels import Panels

Fields = list[tuple[str, Any]]


def pointers(names: str) -> Fields:
    return [(name, c_void_p) for name in names.split()]


def integers(names: str) -> Fields:
    return [(name, c_int32) for name in names.split()]


class Linear(Structure):
    _fields_: ClassVar[Fields] = [("panels", c_void_p), *integers("out inputs")]


class Packed(Structure):
    _fields_: ClassVar[Fields] = [*pointers("codes scales"), *integers("out inputs")]


class Mix(Structure):
    _fields_: ClassVar[Fields] = pointers("norm proj")


class Glu(Structure):
    _fields_: ClassVar[Fields] = [("situ", c_int32), ("beta", c_float), ("linear_beta", c_float)]


class Kda(Structure):
    _fields_: ClassVar[Fields] = [
        *((name, Linear) for name in ("in_proj", "f_b", "g_b", "o_proj")),
        *pointers("conv a_log dt_bias o_norm"),
        *integers("heads head_dim kernel bounded"),
        ("lower_bound", c_float),
    ]


class Mla(Structure):
    _fields_: ClassVar[Fields] = [
        *((name, Linear) for name in ("in_proj", "q_b", "o_proj")),
        *pointers("w_uk w_uv q_norm kv_norm"),
        *integers("heads rank query_rank nope rope value gated"),
        ("scale", c_float),
        *((name, Linear) for name in ("index_q", "index_in")),
        *pointers("k_norm k_bias"),
        *integers("index_heads index_dim top_k"),
    ]


class FeedForward(Structure):
    _fields_: ClassVar[Fields] = [
        *((name, Linear) for name in ("router", "gate_up", "down", "latent_up")),
        *pointers("w13 w2 packed_w13 packed_w2 bias latent_norm"),
        *integers("experts chosen width shared latent renormalize"),
        ("scaling", c_float),
        ("glu", Glu),
    ]


class Layer(Structure):
    _fields_: ClassVar[Fields] = [
        *pointers("kda mla"),
        ("feed_forward", FeedForward),
        *pointers("attention_norm feed_forward_norm"),
        ("attention_mix", Mix),
        ("feed_forward_mix", Mix),
        ("appends", c_int32),
    ]


class Model(Structure):
    _fields_: ClassVar[Fields] = [
        *pointers("layers embed norm"),
        ("mix", Mix),
        ("head", Linear),
        *integers("layer_count hidden moe_layers chosen sparse_layers top_k"),
        ("eps", c_float),
    ]


class Memory(Structure):
    _fields_: ClassVar[Fields] = [*pointers("state inputs latents index_keys"), ("places", c_int64)]


def address(tensor: Tensor) -> int:
    """Where a float32 tensor's values stand; raises InfrastructureError if they are not one block on the CPU."""
    if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise InfrastructureError(f"a {tensor.dtype} tensor on {tensor.device} where the decode step reads float32")
    return tensor.data_ptr()


def linear(panels: Panels) -> Linear:
    """One matrix's struct."""
    return Linear(address(panels.data), panels.out, panels.inputs)


def linears(panels: Panels) -> ctypes.Array[Linear]:
    """An array of structs, one per stacked matrix."""
    size = panels.data[0].numel() * 4
    start = address(panels.data)
    return (Linear * len(panels.data))(
        *(Linear(start + i * size, panels.out, panels.inputs) for i in range(len(panels.data)))
    )


def packed(panels: PackedPanels) -> ctypes.Array[Packed]:
    """An array of structs, one per matrix."""
    codes, scales = (t.numel() // panels.count for t in (panels.codes, panels.scales))
    first = panels.codes.data_ptr(), panels.scales.data_ptr()
    return (Packed * panels.count)(
        *(Packed(first[0] + i * codes, first[1] + i * scales, panels.out, panels.inputs) for i in range(panels.count))
    )


def structs_array(kind: type[Any], items: Sequence[Any]) -> Any:
    """A C array of structs."""
    return (kind * len(items))(*items)
