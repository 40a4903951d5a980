"""What holds for all tests."""

import os
import time
from functools import cache, wraps

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from omegaconf import OmegaConf

from tests.builders.shape_checks import CHECKED

# Before any import of coterie: shapes in annotations are checked, which production never does.
install_import_hook(CHECKED, "tests.builders.shape_checks.check_after_call")

# Ray's workers would wait for all other tests of this machine.
os.environ.setdefault("RAY_worker_niceness", "0")

# A single example may be slow on a busy machine; whether it is says nothing about the code.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")


def pytest_collection_modifyitems(items):
    """Begin with the longest files, but let `make check` keep its order."""
    if "COTERIE_TESTS_UNTIL" not in os.environ:
        items.sort(key=_longest_first)


def _longest_first(item):
    starts_ray = "no_cluster" in getattr(item, "fixturenames", ())
    place = item.path.relative_to(item.config.rootpath).parts[1]
    return {"distributed": 0, "runs": 2}.get(place, 3) + (place == "distributed" and not starts_ray)


def pytest_runtest_setup(item):
    """Begin no test after the time that `make check` has."""
    if time.time() > float(os.environ.get("COTERIE_TESTS_UNTIL", "inf")):
        pytest.skip("make check has run out of time; make test-ci runs it")


@pytest.fixture(scope="session", autouse=True)
def _noise_secret(tmp_path_factory):
    """No test makes or reads the secret in the home of whoever runs it."""
    path = tmp_path_factory.mktemp("secret") / "noise_secret"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_NOISE_SECRET", str(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def _each_experiment_is_composed_once():
    """Hydra takes a tenth of a second for one; `tests/unit/commands` has it compose every time."""
    from coterie.commands import compose

    shipped, composed, experiment = compose.config_dir(), {}, compose._experiment

    @wraps(experiment)
    def once(stem):
        if compose.config_dir() != shipped:
            return experiment(stem)
        if stem not in composed:
            config = experiment(stem)
            runtime = {"runtime": {"choices": dict(config.hydra.runtime.choices)}}
            del config["hydra"]
            composed[stem] = {**OmegaConf.to_container(config), "hydra": runtime}
        return OmegaConf.create(composed[stem])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "_experiment", once)
        yield


@pytest.fixture(autouse=True)
def _no_program_is_exported(monkeypatch):
    """It takes half of a small run's time; runs of fixtures for several tests have theirs."""
    monkeypatch.setattr("coterie.run.outputs.write_program", lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _digits_are_read_once():
    """They are text in an archive, which takes NumPy longer than most tests take for a round."""
    from coterie.datamodules import digits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "load_digits", cache(digits.load_digits))
        yield


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """One small finished run for all tests of what is done with a run afterwards."""
    from tests.builders.runs import train

    probed = ("evaluation.linear_probe=true", "evaluation.knn=true", "checkpoint.every=1")
    return train(tmp_path_factory.mktemp("runs") / "run", *probed)
