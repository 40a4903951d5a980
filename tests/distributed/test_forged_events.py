"""What an actor says of others' clients and calls is not believed, and costs no bits."""

import json

import pytest

from coterie.jobs.train import main

# `tests/unit/distributed/test_event_checks.py` has each check by itself.
pytestmark = [pytest.mark.ray, pytest.mark.slow]

KEYS = (
    "experiment=kmeans_digits",
    "data.limit=400",
    "method.iterations=3",
    "method.restarts=1",
    "partition=iid",
    "partition.clients=5",
    "cluster.num_actors=2",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)


def trained(folder, *keys):
    assert main([*KEYS, f"run_dir={folder}", *keys]) == 0
    return json.loads((folder / "summary.json").read_text()), (
        folder / "model" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("forges", ["failures", "calls", "metrics"])
def test_an_actor_that_forges_events_is_replaced(tmp_path, forges):
    _, honest = trained(tmp_path / "honest", "cluster=serial")
    target = "method.target=tests.builders.forger:Forger"
    summary, model = trained(tmp_path / forges, target, f"method.forges={forges}")
    assert model == honest
    assert summary["failures"]
    for failure in summary["failures"]:
        assert "an actor failed (it sent what no task gives); replaced, its" in failure
