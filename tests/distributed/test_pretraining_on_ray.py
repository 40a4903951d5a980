"""BYOL's targets and predictors that clients keep, and frozen weights, on actors: the same bits."""

import shutil

import pytest

from coterie import Federation
from coterie.commands.compose import compose
from tests.builders.runs import SMALL, assert_same, run

pytestmark = pytest.mark.ray

BASE = (
    "experiment=fedbyol_digits",
    "data.limit=200",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.rounds=2",
    "method.epochs=1",
    "method.batch_size=32",
    "method.hidden=16",
    "method.projection=8",
    "method.predictor_threshold=0.1",
)


@pytest.mark.slow
def test_two_actors_give_the_serial_backends_bits(cluster):
    serial = run("cluster=serial", base=BASE)
    names = {name.partition(".")[0] for kept in serial.states.values() for name in kept}
    assert names == {"target", "predictor"}
    assert_same(run("cluster.num_actors=2", base=BASE), serial)


@pytest.mark.slow
def test_actors_need_no_access_to_the_pretrained_encoders_folder(cluster, tmp_path):
    folder = tmp_path / "run"
    quiet = ("cluster=serial", "evaluation.figures=false", "tracking.progress=none")
    Federation(compose(*SMALL, *quiet, f"run_dir={folder}")).run()
    keys = [key for key in BASE if not key.startswith("encoder")]
    keys += ["encoder=pretrained", f"encoder.path={folder}"]

    def hide(backend, phase):
        if phase == 0 and folder.exists():
            shutil.move(folder, tmp_path / "moved")

    serial = run("cluster=serial", base=keys)
    assert_same(run("cluster.num_actors=2", base=keys, hook=hide), serial)
    assert not folder.exists()
