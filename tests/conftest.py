"""What holds for all tests."""

import pytest
from hypothesis import settings

# A single example may be slow on a busy machine; whether it is says nothing about the code.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """One small finished run for all tests of what is done with a run afterwards."""
    from tests.builders.runs import train

    probed = ("evaluation.linear_probe=true", "evaluation.knn=true", "checkpoint.every=1")
    return train(tmp_path_factory.mktemp("runs") / "run", *probed)
