"""Checkpoints and publications: names, bytes, exact round trips, refusals in one line."""

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from model_cases import DATA, SETS, random_tokens
from safetensors.torch import load_file, save_file

from k3rl.errors import CheckpointError, InfrastructureError
from k3rl.kernels.mxfp4 import dequantize, quantize
from k3rl.model import Model, load_model, preset, save_model


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("name", SETS)
def test_saving_what_was_loaded_gives_the_same_tensors(name: str, tmp_path: Path):
    save_model(load_model(DATA / name), tmp_path, packed=name.endswith("mxfp4"))
    wanted = {k: v for k, v in load_file(DATA / name / "model.safetensors").items() if "remainder_scale" not in k}
    same(load_file(tmp_path / "model.safetensors"), wanted)


def test_a_packed_file_of_a_trained_model_holds_the_quantized_masters(nano: Model, tmp_path: Path):
    save_model(nano, tmp_path / "packed", packed=True)
    save_model(nano, tmp_path / "plain", packed=False)
    packed, plain = (load_file(tmp_path / kind / "model.safetensors") for kind in ("packed", "plain"))
    name = "language_model.model.layers.2.block_sparse_moe.experts.5.w3"
    codes, scales = quantize(plain[f"{name}.weight"])
    assert torch.equal(packed[f"{name}.weight_packed"], codes)
    assert torch.equal(packed[f"{name}.weight_scale"], scales)
    loaded = load_model(tmp_path / "packed")
    tokens = random_tokens(30)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, nano(tokens).logits)  # the forward multiplied by these values already
        nano.qat = False
        assert not torch.equal(loaded(tokens).logits, nano(tokens).logits)


def test_the_masters_of_the_reference_set_quantize_to_its_bytes(expected):
    stored = load_file(DATA / "k3_tiny_mxfp4" / "model.safetensors")
    masters = {k.removeprefix("master."): v for k, v in expected["k3_tiny_mxfp4"].items() if k.startswith("master.")}
    assert len(masters) == 3
    for name, weight in masters.items():
        codes, scales = quantize(weight)
        assert torch.equal(codes, stored[f"{name}_packed"])
        assert torch.equal(scales, stored[f"{name}_scale"])


def test_bytes_made_by_another_rule_are_carried_not_remade(tmp_path: Path):
    """A block whose largest code is 3 is what `rceil` makes of some blocks, and never what `even` makes."""
    shutil.copytree(DATA / "k3_tiny_mxfp4", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    name = "language_model.model.layers.1.block_sparse_moe.experts.0.w2"
    tensors[f"{name}.weight_packed"][0] = 0x15  # codes 5 and 1: 3 and 0.5
    save_file(tensors, path)
    model = load_model(path.parent)
    assert torch.equal(model.state_for_publication()[f"{name}.weight_packed"], tensors[f"{name}.weight_packed"])
    remade = quantize(dequantize(tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]))[0]
    assert not torch.equal(remade, tensors[f"{name}.weight_packed"])
    with torch.no_grad():
        model.layers[1].feed_forward.experts.w2 *= 1.5
    assert not torch.equal(model.state_for_publication()[f"{name}.weight_packed"], tensors[f"{name}.weight_packed"])


def test_an_index_with_shards_is_read(tmp_path: Path):
    tensors = load_file(DATA / "k3_tiny" / "model.safetensors")
    shutil.copy(DATA / "k3_tiny" / "config.json", tmp_path)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    wanted = load_model(DATA / "k3_tiny").state_dict()
    same(dict(load_model(tmp_path).state_dict()), dict(wanted))


def test_a_padded_a_log_is_narrowed(tmp_path: Path):
    shutil.copytree(DATA / "k3_tiny", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    name = "language_model.model.layers.0.self_attn.A_log"
    wanted = tensors[name]
    tensors[name] = torch.cat((wanted, torch.full((126,), 9.0)))
    save_file(tensors, path)
    assert torch.equal(load_model(path.parent).layers[0].attention.a_log, wanted)


def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new(nano: Model, tmp_path: Path):
    save_model(nano, tmp_path, packed=True)
    before = (tmp_path / "model.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(InfrastructureError, match="cannot be written"):
            save_model(nano, tmp_path, packed=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def damage_truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def damage_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damage_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["language_model.model.layers.3.self_attn.kv_b_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def damage_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["language_model.lm_head.weight"] = tensors["language_model.lm_head.weight"][:-1].clone()
    save_file(tensors, folder / "model.safetensors")


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def damage_scale(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_scale"][3, 1] = 255
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, "model.safetensors: truncated or corrupt"),
        (damage_missing, "model.safetensors: missing"),
        (damage_tensor, "kv_b_proj.weight is missing"),
        (damage_shape, r"lm_head.weight is \[255, 64\], the config says \[256, 64\]"),
        (damage_config, "config.json: not JSON"),
        (damage_scale, "experts.0.w1.weight_scale holds NaN"),
    ],
)
def test_damage_is_named_in_one_line(damage, message: str, tmp_path: Path):
    shutil.copytree(DATA / "k3_tiny_mxfp4", tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_a_publication_makes_an_equal_model_that_decodes_at_once(nano: Model):
    torch.manual_seed(1)
    engine = Model(preset("nano").with_vocabulary(200))
    cache = engine.new_cache(slots=1, max_context=64)
    published = {name: value.clone() for name, value in nano.state_for_publication().items()}
    engine.load_published(published)
    same(engine.state_for_publication(), published)
    reference = nano.new_cache(slots=1, max_context=64)
    for token in random_tokens(20):
        got = engine.decode(token[None], cache, torch.tensor([0])).logits
        assert torch.equal(got, nano.decode(token[None], reference, torch.tensor([0])).logits)


def test_public_names_of_packed_experts(nano: Model):
    published = nano.state_for_publication()
    stem = "language_model.model.layers.1.block_sparse_moe.experts.7.w2"
    assert published[f"{stem}.weight_packed"].shape == (64, 32)
    assert published[f"{stem}.weight_scale"].shape == (64, 2)
    assert f"{stem}.weight" not in published
    assert all(v.dtype in (torch.uint8, torch.float32) for v in published.values())
