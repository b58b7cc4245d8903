import pytest
from engine_driver import RULES, random_model

from k3rl.inference import Engine


@pytest.fixture(scope="session")
def model():
    """Shared: tests that change weights make their own."""
    return random_model()


@pytest.fixture
def engine(model):
    return Engine(model, slots=4, max_context=160, rules=RULES, version=0)
