"""The Kimi-K3 architecture with gated sparse attention: configuration, network, decoding, checkpoints."""

from k3rl.model.checkpoint import load_config, load_model, save_model
from k3rl.model.config import ModelConfig
from k3rl.model.decode import Cache, Snapshot, Step
from k3rl.model.model import Model
from k3rl.model.presets import preset
from k3rl.model.transformer import Output, Replay

__all__ = [
    "Cache",
    "Model",
    "ModelConfig",
    "Output",
    "Replay",
    "Snapshot",
    "Step",
    "load_config",
    "load_model",
    "preset",
    "save_model",
]
