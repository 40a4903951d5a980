"""How many clients' actors fit a cluster's nodes, alone and beside the server's."""

import pytest

from coterie.config.schema import ClusterConfig
from coterie.distributed import cluster
from coterie.errors import ConfigError

BIG = {"CPU": 16.0, "GPU": 8.0}
TIGHT = {"CPU": 8.0, "GPU": 8.0}
HEAD = {"CPU": 2.0}


@pytest.mark.parametrize(
    ("nodes", "keys", "alone", "beside"),
    [
        pytest.param([{"CPU": 2.0}], {}, 2, 1, id="of CPUs the server takes a client's"),
        pytest.param([BIG], {"gpus_per_client": 1.0}, 8, 8, id="it takes no GPU"),
        pytest.param([BIG], {"gpus_per_client": 0.25}, 16, 15, id="slices bounded by CPUs"),
        pytest.param([BIG], {"gpus_per_client": 0.5}, 16, 15, id="both bound"),
        pytest.param([TIGHT], {"gpus_per_client": 1.0}, 8, 7, id="a GPU without its CPU is idle"),
        pytest.param([HEAD, TIGHT], {"gpus_per_client": 1.0}, 8, 7, id="Ray chooses the node"),
        pytest.param([HEAD, BIG], {"gpus_per_client": 1.0}, 8, 8, id="all the same to clients"),
        pytest.param([HEAD, BIG], {"cpus_per_client": 4.0}, 4, 3, id="a node without room for it"),
        pytest.param([HEAD, HEAD], {"placement": "strict_spread"}, 2, 2, id="beside a client's"),
        pytest.param([HEAD, {"CPU": 1.0}], {"placement": "strict_spread"}, 2, 1, id="or instead"),
        pytest.param([{"CPU": 1.0}], {}, 1, 0, id="the only slot"),
    ],
)
def test_the_servers_actor_takes_cpus_only(monkeypatch, nodes, keys, alone, beside):
    monkeypatch.setattr(cluster, "live_nodes", lambda: nodes)
    config = ClusterConfig(**keys)
    assert cluster.free_actors(config) == alone
    assert cluster.free_actors(config, beside_server=True) == beside


def test_no_node_has_both(monkeypatch):
    monkeypatch.setattr(cluster, "live_nodes", lambda: [HEAD, {"CPU": 1.0, "GPU": 1.0}])
    with pytest.raises(ConfigError, match="no node with as many GPUs has cluster"):
        cluster.free_actors(ClusterConfig(cpus_per_client=2, gpus_per_client=1), beside_server=True)
