"""Random models with a vocabulary of 101."""

import torch

from k3rl.model import Model, preset

CANARY = tuple(range(3, 75))  # longer than the sparse attention's top-k


def random_model(seed, dtype=torch.float32):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Model(preset("nano").with_vocabulary(101)).to(dtype)
    with torch.no_grad():
        model.lm_head.mul_(20)  # as sharp as a trained model: differences show
    return model
