"""What several folders of tests share: domains and models made for tests, and one local Ray cluster."""

import os
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))
# Ray's workers and the commands that tests start find the test domains this way.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def renderer():
    """The chat renderer of the shipped tokenizer."""
    from k3rl.chat import XtmlRenderer, load_tokenizer
    from k3rl.model_folder import tokenizer_folder

    return XtmlRenderer(load_tokenizer(tokenizer_folder("nano")))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a model that plays `guess_domain` by chance."""
    from tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def ray_cluster():
    """A connection to a cluster of the test session, which ends with it: the override that lets a command join it."""
    from k3rl.cluster import cluster
    from k3rl.config import RaySection

    with cluster(RaySection(object_store_mib=100)):
        import ray

        yield f"ray.address={ray.get_runtime_context().gcs_address}"


@pytest.fixture(scope="session")
def undisturbed(tiny_model, tmp_path_factory, ray_cluster):
    """The folder of a small run that nothing happened to."""
    from loop_runs import overrides, train

    run_dir = tmp_path_factory.mktemp("runs") / "undisturbed"
    status, _, err = train(overrides(tiny_model, run_dir, ray_cluster), run_dir)
    assert status == 0, err
    return run_dir
