"""What holds for all tests."""

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.builders.shape_checks import CHECKED

# Before any import of coterie: shapes in annotations are checked, which production never does.
install_import_hook(CHECKED, "tests.builders.shape_checks.check_after_call")

# A single example may be slow on a busy machine; whether it is says nothing about the code.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """One small finished run for all tests of what is done with a run afterwards."""
    from tests.builders.runs import train

    probed = ("evaluation.linear_probe=true", "evaluation.knn=true", "checkpoint.every=1")
    return train(tmp_path_factory.mktemp("runs") / "run", *probed)
