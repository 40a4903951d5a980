"""A module of the user's on actors: the same bits for one actor or two, in this process too."""

import pytest
import torch

from tests.builders.own_module import federated

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
