"""How many clients' actors fit a cluster's nodes."""

import pytest

from coterie.config.schema import ClusterConfig
from coterie.distributed import cluster
from coterie.errors import ConfigError

BIG = {"CPU": 16.0, "GPU": 8.0}
TIGHT = {"CPU": 8.0, "GPU": 8.0}
HEAD = {"CPU": 2.0}


@pytest.mark.parametrize(
    ("nodes", "keys", "free"),
    [
        pytest.param([{"CPU": 2.0}], {}, 2, id="by CPUs"),
        pytest.param([BIG], {"gpus_per_client": 1.0}, 8, id="by GPUs"),
        pytest.param([BIG], {"gpus_per_client": 0.25}, 16, id="slices bounded by CPUs"),
        pytest.param([BIG], {"gpus_per_client": 0.5}, 16, id="halves of GPUs, and CPUs"),
        pytest.param([TIGHT], {"gpus_per_client": 1.0}, 8, id="a GPU without its CPU is idle"),
        pytest.param([HEAD, TIGHT], {"gpus_per_client": 1.0}, 8, id="a head without GPUs"),
        pytest.param([HEAD, BIG], {"gpus_per_client": 1.0}, 8, id="beside a larger node"),
        pytest.param([HEAD, BIG], {"cpus_per_client": 4.0}, 4, id="a node without room"),
        pytest.param([HEAD, HEAD], {"placement": "strict_spread"}, 2, id="one on each node"),
        pytest.param([HEAD, {"CPU": 1.0}], {"placement": "strict_spread"}, 2, id="on any"),
        pytest.param([{"CPU": 1.0}], {}, 1, id="the only slot"),
    ],
)
def test_actors_that_fit(monkeypatch, nodes, keys, free):
    monkeypatch.setattr(cluster, "live_nodes", lambda: nodes)
    config = ClusterConfig(**keys)
    assert cluster.free_actors(config) == free


def test_no_node_has_both(monkeypatch):
    monkeypatch.setattr(cluster, "live_nodes", lambda: [HEAD, {"CPU": 1.0, "GPU": 1.0}])
    with pytest.raises(ConfigError, match="no node with as many GPUs has cluster"):
        cluster.free_actors(ClusterConfig(cpus_per_client=2, gpus_per_client=1))
