"""CF-CL with a device that lies to its neighbours: they go on, and it alone has failed."""

import json

import numpy as np
import pytest

from coterie import Federation
from coterie.commands.compose import compose
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL

pytestmark = pytest.mark.ci

RUN = (
    "experiment=cfcl",
    "data=npz",
    "partition.clients=4",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "method.target=tests.builders.lying_peers:LyingPeer",
    "method.topology=complete",
    "method.total_steps=12",
    "method.aggregate_every=6",
    "method.pull_every=2",
    "method.batch_size=32",
    "method.budget=20",
    "method.reserve_size=4",
    "method.approx_size=20",
    "method.clusters=3",
    *SERIAL,
)
EXPLICIT, IMPLICIT = "method.exchange=explicit", "method.exchange=implicit"
NEAR = "method.proximity=true"


def run(folder, *overrides):
    draw = np.random.default_rng(0)
    samples = draw.normal(size=(160, 6)).astype(np.float32)
    np.savez(folder / "data.npz", samples=samples, labels=np.arange(160) % 4)
    view = Silent()
    keys = *RUN, f"data.path={folder / 'data.npz'}", f"run_dir={folder / 'run'}", *overrides
    result = Federation(compose(*keys), view).run()
    return result, json.loads((folder / "run" / "summary.json").read_text())["failures"], view.notes


@pytest.mark.parametrize("keys", [(EXPLICIT,), (EXPLICIT, NEAR), (IMPLICIT,), (IMPLICIT, NEAR)])
@pytest.mark.parametrize("lie", [1e12, 2.0**24])
def test_no_other_device_fails(tmp_path, keys, lie):
    result, failures, notes = run(tmp_path, *keys, f"method.lie={lie}")
    assert not [failure for failure in failures if "client 1 failed" not in failure]
    refused = keys[0] == IMPLICIT and lie > 2**24
    assert (bool(failures), result.exit_code) == (refused, 3 if refused else 0)
    told = [
        note
        for note in notes
        if "samples from its neighbours, with values beyond 1000 times" in note
    ]
    assert bool(told) == (keys[0] == EXPLICIT)


def test_samples_of_neighbours_with_larger_values_count(tmp_path):
    _, failures, notes = run(tmp_path, EXPLICIT, "method.lie=900")
    assert not failures
    assert not [note for note in notes if "leaves out" in note]


def test_devices_whose_samples_are_their_centroids_have_no_proximity(tmp_path):
    result, failures, _ = run(tmp_path, IMPLICIT, NEAR, "method.clusters=100")
    assert (result.exit_code, failures) == (0, [])
    assert "proximity" not in (tmp_path / "run" / "metrics.jsonl").read_text()
