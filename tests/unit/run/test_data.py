"""Reading a run's data: what is told about its split."""

from pathlib import Path

import numpy as np
import pytest

from coterie.commands.compose import compose
from coterie.contract.data import DataArrays, Survey
from coterie.errors import ConfigError, DataError
from coterie.run import data as data_module
from coterie.run.data import read_and_split, read_data

KEYS = ("experiment=concord", "data=npz", "encoder=raw", "data.clients=who")


@pytest.mark.parametrize("partition", ["iid", "by_client", "smallest"])
def test_clients_of_the_data_that_the_partition_mixes_are_told(tmp_path, partition, caplog):
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    who = np.repeat(["rome", "oslo"], 6)
    np.savez(tmp_path / "data.npz", samples=rows, who=who)
    keys = (*KEYS, f"data.path={tmp_path / 'data.npz'}", "method.clusters=2")
    more = {
        "iid": ("partition=iid", "partition.clients=3"),
        "by_client": ("partition=by_client",),
        "smallest": ("partition=by_client", "partition.smallest=7"),
    }
    _, parts = read_and_split(compose(*keys, *more[partition]))
    told = [record.getMessage() for record in caplog.records]
    if partition != "iid":
        assert (len(parts), told) == (2 if partition == "by_client" else 1, [])
    else:
        assert told == [
            "data=data names 2 clients, but the partition mixes their samples; "
            "partition=by_client keeps them apart."
        ]


SHARED = ("partition=grouped", "partition.clients=9", "partition.shared=true")
NOISE = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=5")
GRADIENTS = ("experiment=fedavg", "data=digits", "encoder=mlp", "privacy.dp.unit=sample")


@pytest.mark.parametrize("own", [("experiment=kmeans_digits",), GRADIENTS])
def test_noise_for_single_samples_counts_each_once(own):
    with pytest.raises(ConfigError, match=r"^partition: \d+ samples are with several clients, one"):
        read_and_split(compose(*own, *SHARED, *NOISE))
    read_and_split(compose(*own, *NOISE, "partition=iid"))


def test_a_sample_may_be_with_several_clients_where_noise_protects_clients_or_nobody():
    read_and_split(compose("experiment=fedavg", "data=digits", *SHARED, *NOISE))
    read_and_split(compose("experiment=kmeans_digits", *SHARED))


@pytest.mark.parametrize("path", ["a.npz", "./x/../a.npz", "linked.npz"])
@pytest.mark.parametrize(
    "own",
    [
        ("experiment=kmeans", "method.clusters=2", "method.restarts=1"),
        ("experiment=fedavg", "encoder=mlp", "privacy.dp.unit=sample"),
    ],
    ids=["sums", "gradients"],
)
def test_noise_for_single_samples_counts_those_of_sites_once(tmp_path, monkeypatch, own, path):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        np.savez(f"{name}.npz", samples=draw.normal(size=(8, 3)).astype(np.float32), labels=[0] * 8)
    Path("x").mkdir()
    Path("linked.npz").symlink_to("a.npz")
    source = "data.source={target: coterie.datamodules.npz:NPZ}"
    keys = (*own, "data=node_local", "cluster=serial", source)
    read_data(compose(*keys, *NOISE, "data.clients={a: a.npz, b: b.npz}"))
    with pytest.raises(ConfigError, match=r"^data\.clients: b has the same data as a, and privacy"):
        read_data(compose(*keys, *NOISE, f"data.clients={{a: a.npz, b: {path}}}"))


def test_sites_may_have_the_same_data_where_nobody_is_protected(tmp_path):
    np.savez(tmp_path / "a.npz", samples=np.eye(8, dtype=np.float32), labels=[0] * 8)
    same = f"data.clients={{a: {tmp_path / 'a.npz'}, b: {tmp_path / 'a.npz'}}}"
    source = "data.source={target: coterie.datamodules.npz:NPZ}"
    keys = ("experiment=kmeans", "method.clusters=2", "data=node_local", "cluster=serial", source)
    assert len(read_data(compose(*keys, same)).parts) == 2


def test_sites_with_other_columns_or_in_another_order_are_refused(monkeypatch):
    monkeypatch.setattr(data_module, "node_local_names", lambda config: ("oslo", "rome"))
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    sites = [
        Survey.of(DataArrays(name="t", samples=rows, features=names))
        for names in (("age", "pulse"), ("pulse", "age"))
    ]
    config = compose("experiment=kmeans_digits")
    with pytest.raises(DataError, match="client rome has the features pulse, age, client oslo age"):
        data_module.arrays_of_silos(config, sites)
    both, _ = data_module.arrays_of_silos(config, [sites[0], sites[0]])
    assert both.features == ("age", "pulse")
