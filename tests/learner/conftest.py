from pathlib import Path

import pytest
import torch

from tests.learner.nano import write_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed MXFP4 model folder."""
    return write_model(tmp_path_factory.mktemp("model"))
