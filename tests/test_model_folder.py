"""Model folders by path or name, and what is told about those that are none."""

import json
from pathlib import Path

import pytest

from k3rl.errors import CheckpointError
from k3rl.model_folder import model_config, model_folder, model_name, tokenizer_folder


def test_a_folder_and_its_configuration(tiny_model):
    assert model_folder(str(tiny_model)) == tiny_model
    config = model_config(tiny_model)
    assert (config.num_layers, config.hidden_size) == (2, 64)


def test_a_run_s_model_is_called_as_the_run():
    assert [model_name(Path(p)) for p in ("runs/joint/model", "assets/nano_base", "runs/base/stages/0-copy")] == [
        "joint",
        "nano_base",
        "0-copy",
    ]


def test_a_missing_folder_names_what_there_is(tmp_path):
    with pytest.raises(CheckpointError, match="no model folder") as caught:
        model_folder(str(tmp_path / "nothing"))
    assert str(tmp_path / "nothing") in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps({"model_type": "llama", "hidden_size": 64, "vocab_size": 100}),
        json.dumps({"text_config": "kimi_linear"}),
        json.dumps({"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": None}}),
    ],
)
def test_another_architecture_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        model_config(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokenizers_by_name_and_by_path(tmp_path):
    assert (tokenizer_folder("nano") / "tokenizer.json").is_file()
    assert tokenizer_folder(str(tmp_path)) == tmp_path
