"""Secure aggregation on actors that are killed while sums are masked and unmasked."""

import pytest
import ray

from coterie import Federation
from coterie.commands.compose import compose
from coterie.distributed.backend import RayBackend
from tests.builders.every_method import small
from tests.builders.runs import COMMAND

pytestmark = pytest.mark.ray

QUIET = tuple(key for key in COMMAND if key.startswith(("evaluation.", "tracking.")))
KEYS = (*small("fedavg"), "method.rounds=3", "executor=bare", *QUIET)
KILLS = {1: "mask", 2: "reveal", 3: "share"}
"""Round to the step at which an actor dies."""


def model_files(folder):
    files = sorted((folder / "model").rglob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


def test_actors_that_die_under_masks_change_no_bit(cluster, tmp_path, monkeypatch):
    Federation(compose(*KEYS, "cluster=serial", f"run_dir={tmp_path / 'plain'}")).run()
    exchange, left = RayBackend.exchange, dict(KILLS)

    def deadly(self, step, messages):
        if left and left[min(left)] == step:
            del left[min(left)]
            ray.kill(self._hosts[min(messages)])
        return exchange(self, step, messages)

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
