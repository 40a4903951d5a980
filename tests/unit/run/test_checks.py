"""How many clusters a run is scored with, whatever a method's own keys of that name count."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from coterie import Federation
from coterie.commands.compose import compose
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError
from coterie.run.checks import cluster_key, cluster_number

SHORT = (
    "cluster=serial",
    "executor=bare",
    "tracking.progress=none",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)
CFCL = (
    "experiment=cfcl_digits",
    "data.limit=120",
    "method.total_steps=2",
    "method.aggregate_every=2",
    "method.pull_every=2",
    "method.exchange=none",
    "partition=iid",
    "partition.clients=2",
)


def config(*overrides: str) -> RunConfig:
    return compose(*overrides, *SHORT)


@pytest.mark.parametrize(
    ("overrides", "key", "number"),
    [
        (("experiment=fedmcc_digits",), "method.clusters", 10),
        (("experiment=ccfc_digits", "method.clusters=7"), "method.clusters", 7),
        (("experiment=cfcl_digits", "method.clusters=7"), "evaluation.clusters", 10),
        (("experiment=cfcl_digits", "evaluation.clusters=4"), "evaluation.clusters", 4),
        (("experiment=cpcfl_digits",), "evaluation.clusters", 10),
        (("experiment=simclr_digits",), "evaluation.clusters", 10),
        (("experiment=orchestra_digits", "evaluation.clusters=3"), "evaluation.clusters", 3),
    ],
)
def test_where_the_number_comes_from(overrides: tuple[str, ...], key: str, number: int) -> None:
    run = config(*overrides)
    assert (cluster_key(run), cluster_number(run, classes=10)) == (key, number)


def scored(path: Path, *overrides: str) -> tuple[set[int], set[str]]:
    """The clusters that samples are in, and what was scored."""
    Federation(config(*overrides, f"run_dir={path}")).run()
    metrics = json.loads((path / "summary.json").read_text())["metrics"]
    clusters = pq.read_table(path / "assignments.parquet").to_pydict()["cluster"]
    return set(clusters), set(metrics)


def test_cfcls_clusters_of_candidates_are_not_those_of_the_result(tmp_path: Path) -> None:
    found, metrics = scored(tmp_path / "run", *CFCL, "method.clusters=20")
    assert found == set(range(10))
    assert {"clustering", "kmeans_raw"} <= metrics


def test_data_without_labels_is_clustered_as_the_evaluation_says(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(size=(40, 5)).astype("f4")
    np.savez(tmp_path / "v.npz", x=samples)
    vectors = (
        "experiment=simclr_digits",
        "data=npz",
        f"data.path={tmp_path / 'v.npz'}",
        "partition=iid",
        "partition.clients=1",
        "encoder=mlp",
        "augmentation=noise",
        "method.rounds=1",
        "method.epochs=1",
        "method.batch_size=16",
    )
    assert scored(tmp_path / "run", *vectors, "evaluation.clusters=3") == ({0, 1, 2}, set())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("experiment=fedmcc_digits", "evaluation.clusters=5"),
            "evaluation.clusters=5: this method's number of clusters is method.clusters; set that.",
        ),
        (
            ("experiment=simclr_digits", "data.limit=8", "method.batch_size=4"),
            "evaluation.clusters=10: data=digits has 8 samples; choose at most as many clusters.",
        ),
        (
            ("experiment=orchestra_digits", "evaluation.max_samples=12", "evaluation.clusters=20"),
            "evaluation.max_samples=12: that is less than the 20 clusters; raise it.",
        ),
    ],
)
def test_a_number_that_cannot_be(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Federation(config(*overrides)).run()
    assert str(refusal.value) == sentence


def test_a_classifier_needs_no_clusters(tmp_path: Path) -> None:
    few = ("experiment=fedavg_digits", "partition=iid", "partition.clients=1", "data.limit=9")
    run = config(*few, "method.rounds=1", "method.batch_size=4", f"run_dir={tmp_path / 'run'}")
    assert "clustering" not in Federation(run).run().metrics
