"""A module of the user's on actors: the same bits for one actor or two, in this process too."""

import pytest
import torch

from coterie.execution.settings import settings_kept
from tests.builders.leaves import WAYS
from tests.builders.own_module import Lit, federated, rows

pytestmark = pytest.mark.ray

KEYS = {"clients": 3, "keep_optimizer": True, "holdout": 0.2, "personal": ["head.*"]}


def values(run):
    modules = [run.module, *(run.client_module(client) for client in range(3))]
    return [value for module in modules for value in module.state_dict().values()]


def test_actors_change_no_bit(tmp_path):
    here = values(federated(tmp_path / "serial", **KEYS))
    for actors in (1, 2):
        cluster = {"num_actors": actors, "cpus_per_client": 0.5}
        there = values(federated(tmp_path / f"{actors}", **{**KEYS, "cluster": cluster}))
        assert all(map(torch.equal, here, there))


class Tells(Lit):
    """Logs the settings of its process."""

    def training_step(self, batch, batch_idx):
        precision = torch.get_float32_matmul_precision()
        self.log("dtype", float(torch.finfo(torch.get_default_dtype()).bits))
        self.log("products", float(("highest", "high", "medium").index(precision)))
        self.log("library", float(torch.backends.mkldnn.enabled))
        return super().training_step(batch, batch_idx)


def test_settings_of_the_program_hold_on_actors_too(tmp_path):
    found = []
    with settings_kept():
        for how in ("dtype", "products", "library"):
            WAYS[how]()
        for name, cluster in {"serial": {"backend": "serial"}, "actors": {"num_actors": 2}}.items():
            torch.manual_seed(0)
            done = federated(tmp_path / name, Tells(), clients=3, cluster=cluster)
            told = [row[key] for row in rows(done) for key in ("dtype", "products", "library")]
            found.append((told, [value.tolist() for value in done.module.state_dict().values()]))
    assert found[0] == found[1]
