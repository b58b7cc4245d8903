import pytest
from published_models import CANARY, random_model

from k3rl.sync import publish


@pytest.fixture(scope="session")
def learner():
    return random_model(0)


@pytest.fixture(scope="session")
def publication(learner):
    return publish(learner, 7, CANARY)


@pytest.fixture
def held():
    """A model as an engine holds it, with other weights."""
    return random_model(1)
