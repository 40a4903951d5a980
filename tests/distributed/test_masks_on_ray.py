"""Secure aggregation on actors that are killed while sums are masked and unmasked."""

import pytest
import ray

from coterie import Federation
from coterie.commands.compose import compose
from coterie.distributed import fleet
from coterie.distributed.backend import RayBackend
from tests.builders.every_method import small
from tests.builders.hangs import CLIENT, HangingActor
from tests.builders.runs import COMMAND

pytestmark = pytest.mark.ray

QUIET = tuple(key for key in COMMAND if key.startswith(("evaluation.", "tracking.")))
KEYS = (*small("fedavg"), "method.rounds=3", "executor=bare", *QUIET)
KILLS = {1: "mask", 2: "reveal", 3: "share"}
"""Round to the step at which an actor dies."""


def model_files(folder):
    files = sorted((folder / "model").rglob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
def test_actors_that_die_under_masks_change_no_bit(cluster, tmp_path, monkeypatch):
    Federation(compose(*KEYS, "cluster=serial", f"run_dir={tmp_path / 'plain'}")).run()
    exchange, left = RayBackend.exchange, dict(KILLS)

    def deadly(self, stage, step, messages):
        if left and left[min(left)] == step:
            del left[min(left)]
            ray.kill(self._hosts[min(messages)])
        return exchange(self, stage, step, messages)

    monkeypatch.setattr(RayBackend, "exchange", deadly)
    masked = ("cluster.num_actors=4", "privacy.secure_aggregation=true")
    ran = Federation(compose(*KEYS, *masked, f"run_dir={tmp_path / 'masked'}")).run()
    assert left == {}
    assert model_files(tmp_path / "masked") == model_files(tmp_path / "plain") != {}
    lost = "an actor failed (its process was lost with its masked sum)"
    assert [failure.partition(": ")[2] for failure in ran.failures if "masked" in failure] == [
        f"{lost}; replaced, its clients run again"
    ] * 2
    assert ran.exit_code == 0


@pytest.mark.slow
def test_a_client_that_hangs_under_masks_is_dropped_and_the_others_count(
    cluster, tmp_path, monkeypatch
):
    three = ("partition=iid", "partition.clients=3")
    keys = (*KEYS, *three, "method.rounds=1", "privacy.secure_aggregation=true")
    without = f"participation.availability=[[{','.join(str(c) for c in range(3) if c != CLIENT)}]]"
    Federation(compose(*keys, "cluster=serial", without, f"run_dir={tmp_path / 'plain'}")).run()
    monkeypatch.setattr(fleet, "ClientActor", HangingActor)
    limits = ("faults.client_timeout_s=10", "faults.on_client_failure=drop")
    ran = Federation(
        compose(*keys, "cluster.num_actors=3", *limits, f"run_dir={tmp_path / 'masked'}")
    ).run()
    late = "took longer than faults.client_timeout_s=10"
    assert ran.failures == (
        f"round 1, supervised: client {CLIENT} failed ({late}); dropped from the phase",
    )
    assert ran.exit_code == 3
    assert model_files(tmp_path / "masked") == model_files(tmp_path / "plain") != {}
