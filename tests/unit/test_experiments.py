"""Every experiment is what its name says: method, data, clients, sizes."""

import pytest

from coterie.config import dump_config
from ray_jobs.compose import compose, experiments

FEDERATED = {"fedmcc": 5, "fedcc": 5, "mcc": 1, "cc": 1, "fedavg": 5}
FEDERATED |= {"fedsimclr": 5, "fedbyol": 5, "fedsimsiam": 5, "simclr": 1, "byol": 1, "simsiam": 1}
FEDERATED |= {"ccfc": 10, "cfcl": 10}
FEDERATED |= {"cpcfl": 60, "ifca": 60, "cpcfl_digits": 12, "ifca_digits": 12}
FEDERATED |= {"orchestra": 10, "orchestra_cifar10": 100, "orchestra_fashionmnist": 20}


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_is_what_its_name_says(name: str) -> None:
    method, data, *_ = name.split("_")
    clients = FEDERATED.get(name, FEDERATED[method])
    values = dump_config(compose(f"experiment={name}"))
    assert values["method"]["target"].lower().endswith(f":{method}")
    assert values["data"]["target"].lower().endswith(f":{data}")
    assert values["partition"]["clients"] == clients
    resized = data in ("mnist", "fashionmnist") and method not in ("fedavg", "ccfc")
    assert values["data"]["size"] == (32 if resized else None)
    assert values["data"]["root"] is None
    if method == "cfcl":
        embedded = name.endswith("_implicit")
        assert values["method"]["exchange"] == ("implicit" if embedded else "explicit")
        assert values["encoder"]["features"] == 16
        assert values["partition"]["k"] == 3
    if data == "cifar10" and clients != 60:
        depth = 34 if clients == 1 else 18
        split = "all" if clients == 1 or method == "ccfc" else "train"
        assert (values["encoder"]["depth"], values["encoder"]["stem"]) == (depth, "small")
        assert values["data"]["split"] == split
