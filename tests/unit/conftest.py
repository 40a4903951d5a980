"""One small finished run for all tests of what is done with a run afterwards."""

import pytest

from tests.finished_runs import train


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    probed = ("evaluation.linear_probe=true", "evaluation.knn=true", "checkpoint.every=1")
    return train(tmp_path_factory.mktemp("runs") / "run", *probed)
