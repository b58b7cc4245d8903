"""The Kimi-K3 architecture with gated sparse attention: configuration, network, decoding, checkpoints."""

from k3rl.model.checkpoint import load_config, load_model, public_tensors, save_model
from k3rl.model.config import ModelConfig
from k3rl.model.presets import preset
from k3rl.model.transformer import Model, Output, Replay

__all__ = [
    "Model",
    "ModelConfig",
    "Output",
    "Replay",
    "load_config",
    "load_model",
    "preset",
    "public_tensors",
    "save_model",
]
