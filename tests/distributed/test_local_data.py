"""Data that stays with its clients, on two node processes: who reads it, and what comes back."""

import json
import os

import numpy as np
import pytest
import ray
from PIL import Image
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from coterie.clustering.contingency import contingency
from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError, RunError
from coterie.evaluation.clustering_metrics import clustering_scores
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.ray_processes import join
from tests.builders.runs import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240), pytest.mark.usefixtures("no_cluster")]
CLASSES = {"a": range(9), "b": range(1, 10)}  # neither node-local client has all ten


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder, digits = tmp_path_factory.mktemp("sites"), load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for name, rows in (("a", range(90)), ("b", range(90, 200))):
        for row in rows:
            if digits.target[row] in CLASSES[name]:
                place = folder / name / f"c{digits.target[row]}"
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images[row]).save(place / f"{row}.png")
    return folder


@pytest.fixture(scope="module")
def nodes():
    """A head without CPUs, and a node for each node-local client."""
    system = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": system}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.by_site = {
        name: cluster.add_node(num_cpus=1, resources={f"site_{name}": 1}) for name in "ab"
    }
    join(cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def config(sites, run_dir, *overrides):
    return compose(
        *SMALL,
        "executor=bare",
        "data=node_local",
        "~data.limit",
        f"run_dir={run_dir}",
        f"data.clients={{site_a: {sites}/a, site_b: {sites}/b}}",
        "data.source={target: tests.builders.watched:Watched, mode: L}",
        "cluster.client_resources={site_a: 1, site_b: 1}",
        "method.clusters=10",
        "evaluation.every=1",
        *overrides,
    )


def run(sites, run_dir, *overrides):
    view = Silent()
    result = Federation(config(sites, run_dir, *overrides), view).run()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    return result, [row for row in rows if row["scope"] == "server"]


@pytest.fixture(scope="module")
def serial(sites, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("serial") / "run"
    result, rows = run(sites, run_dir, "cluster=serial")
    return result, rows, load_file(run_dir / "model" / "model.safetensors")


@pytest.mark.slow
def test_each_client_reads_its_data_on_its_own_node(nodes, sites, serial, tmp_path):
    for name in "ab":
        (sites / name / ".reads").unlink()
    result, rows = run(sites, tmp_path / "run")
    for name in "ab":
        reads = [line.split() for line in (sites / name / ".reads").read_text().splitlines()]
        assert {node for _, node in reads} == {nodes.by_site[name].node_id}
        assert str(os.getpid()) not in {pid for pid, _ in reads}
    expected, expected_rows, model = serial
    mine = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(mine[name].equal(model[name]) for name in model)
    assert result.metrics == expected.metrics
    bits = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
    assert bits == [{k: v for k, v in row.items() if "seconds" not in k} for row in expected_rows]


@pytest.mark.slow
def test_under_masks_the_silos_leave_the_same_model(nodes, sites, tmp_path):
    one_head = "method.cluster_heads=1"
    run(sites, tmp_path / "plain", "cluster=serial", one_head)
    result, rows = run(sites, tmp_path / "run", one_head, "privacy.secure_aggregation=true")
    mine, plain = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "plain")
    )
    assert mine.keys() == plain.keys() != set()
    assert all(mine[name].equal(plain[name]) for name in plain)
    assert result.exit_code == 0
    assert all(row["bytes/up/secure_aggregation"] > 0 for row in rows)


def test_only_counts_come_back_and_they_are_the_pooled_datas(sites, serial, tmp_path):
    result, _, _ = serial
    assert result.assignments is None
    assert sorted(result.metrics) == ["clustering"]
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert summary["bytes"]["evaluation"] > 0
    assert not (result.run_dir / "assignments.parquet").exists()
    tables = []
    for name in "ab":
        for place in sorted((sites / name).iterdir()):
            if place.name.startswith("."):
                continue
            pixels = np.stack([np.asarray(Image.open(p)) for p in sorted(place.iterdir())])
            import torch

            with torch.inference_mode():
                found = result.model(torch.from_numpy(pixels[:, None])).probabilities
            labels = np.full(len(pixels), int(place.name[1:]))
            tables.append(contingency(found.argmax(1).numpy(), labels, 10, 10))
    scores = clustering_scores(sum(tables))
    assert result.metrics["clustering"]["acc"] == pytest.approx(scores["acc"])
    assert result.metrics["clustering"]["nmi"] == pytest.approx(scores["nmi"])


def test_nothing_shaped_like_data_is_put_into_the_object_store(nodes, sites, tmp_path, monkeypatch):
    put, seen = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value, **kw: seen.append(value) or put(value, **kw))
    run(sites, tmp_path / "run", "method.clustering_rounds=1")
    assert seen
    assert not [value for value in seen if isinstance(value, np.ndarray)]
    shapes = {
        field.shape
        for value in seen
        for packed in (getattr(value, "slots", None) or {"": value}).values()
        for field in getattr(packed, "fields", ())
    }
    assert shapes
    assert not [shape for shape in shapes if shape[-2:] == (8, 8)]


def test_a_missing_node_is_named(nodes, sites, tmp_path):
    overrides = "cluster.client_resources={site_a: 1, site_b: 5}", "cluster.start_timeout_s=3"
    with pytest.raises(RunError) as caught:
        run(sites, tmp_path / "run", *overrides)
    assert str(caught.value) == (
        f"cluster.client_resources: no node of the cluster at {nodes.address} has "
        f"{{'site_b': 5.0}} for client site_b; start one with ray start --address={nodes.address} "
        "--resources='{\"site_b\": 5.0}'."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_does_not_fit_is_refused(nodes, sites, tmp_path):
    with pytest.raises(ConfigError, match=r"client_resources.site_c: .*site_a"):
        run(sites, tmp_path / "run", "cluster.client_resources={site_c: 1}")
    with pytest.raises(DataError, match=r"client site_b: .*/nowhere"):
        run(sites, tmp_path / "run", f"data.clients.site_b={sites}/nowhere")


class Removes(Silent):
    """Ends the second node-local client's node after the first phase."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster = cluster

    def phase_finished(self, record):
        if record.phase.round == 1:
            self.cluster.remove_node(self.cluster.by_site["b"], allow_graceful=False)


@pytest.mark.slow
def test_a_silo_that_is_lost_is_dropped(nodes, sites, tmp_path):  # the last one: its node is gone
    view = Removes(nodes)
    result = Federation(config(sites, tmp_path / "run", "faults.min_participation=0"), view).run()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    participants = [row["participants"] for row in rows if row["scope"] == "server"]
    assert (participants[0], participants[-1]) == (2, 1)
    assert result.exit_code == 3
    assert any("client 1 failed (no node has its data any more)" in f for f in result.failures)
