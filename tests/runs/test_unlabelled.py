"""Whole runs without labels, with few, and with the data's own clients, on the serial backend."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

from coterie import Federation
from coterie.commands.compose import compose
from coterie.config import MethodConfig
from coterie.contract import Method
from coterie.contract.data import DataArrays
from coterie.errors import ConfigError, DataError
from coterie.evaluation.label_distribution import ClassTable, class_spread, client_names
from coterie.evaluation.scorer import sizes_in_words
from coterie.jobs.predict import main as predict
from tests.builders.observers import Silent

QUIET = ("evaluation.figures=false", "tracking.progress=none")
SHORT = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "method.representation_rounds=1",
    "method.representation_epochs=1",
    "method.clustering_rounds=1",
    "method.clustering_epochs=1",
    "method.batch_size=16",
    "evaluation.every=0",
    "tracking.progress=none",
)


class Supervised(Method):
    """A method that is refused before it is built."""

    needs_labels = True

    class Config(MethodConfig):
        """It has no keys."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Sixty digits in a folder per client, and the same as vectors, most without a label."""
    folder, source = tmp_path_factory.mktemp("digits"), load_digits()
    for row, image in enumerate(source.images[:60]):
        path = folder / "pictures" / f"site{row % 3}" / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(path)
    labels = np.where(np.arange(60) < 20, source.target[:60], -1)
    np.savez(folder / "vectors.npz", x=source.data[:60], y=labels)
    return folder


def run(*overrides):
    result = Federation(compose(*SHORT, *overrides)).run()
    return result, json.loads((result.run_dir / "summary.json").read_text())


def test_an_unlabelled_folder_is_clustered_by_its_own_clients(digits, tmp_path):
    path = (f"data.path={digits / 'pictures'}", "data.mode=L")
    overrides = ("data=client_folders", *path, "partition=by_client", "method.clusters=4")
    result, summary = run(*overrides, f"run_dir={tmp_path / 'run'}")
    assert (summary["status"], summary["clients"], summary["metrics"]) == ("completed", 3, {})
    table = pq.read_table(tmp_path / "run" / "assignments.parquet").to_pydict()
    assert table["sample"] == list(range(60))
    assert table["client"] == [0] * 20 + [1] * 20 + [2] * 20
    assert table["cluster"] == result.assignments.tolist()
    assert set(table["cluster"]) <= set(range(4))
    figures = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert figures == {"clusters.png", "curves.png", "partition.png", "tsne.png"}


def test_it_is_told_where_a_representation_will_have_no_clusters(digits, tmp_path, capsys):
    path = ("data=image_folder", f"data.path={digits / 'pictures'}", "data.mode=L")
    short = (
        "method.rounds=1",
        "method.epochs=1",
        "partition.clients=2",
        "evaluation.figures=false",
    )
    own = ("encoder=mlp", "encoder.hidden=[16]", "cluster=serial", "tracking.progress=none")
    keys = ("experiment=fedsimclr_digits", *path, *short, *own, f"run_dir={tmp_path / 'run'}")
    view = Silent()
    Federation(compose(*keys), view).run()
    assert (
        "There will be no clusters, since the data has no classes to count; set "
        "evaluation.clusters to have some."
    ) in view.notes
    arguments = [f"model={tmp_path / 'run'}", f"input={digits / 'pictures' / 'site0'}"]
    assert predict([*arguments, f"output={tmp_path / 'out.csv'}"]) == 0
    assert "no clusters" in " ".join(capsys.readouterr().out.split())
    view = Silent()
    Federation(compose(*keys, "resume=true", "evaluation.clusters=3"), view).run()
    assert [note for note in view.notes if "no clusters" in note] == []
    assert predict([*arguments, f"output={tmp_path / 'again.csv'}"]) == 0
    assert "no clusters" not in capsys.readouterr().out


def test_few_labels_score_their_own_samples_alone(digits, tmp_path):
    path = ("data=npz", f"data.path={digits / 'vectors.npz'}", "augmentation=noise")
    overrides = ("partition=iid", "partition.clients=2", "method.clustering_augmentation=null")
    short = ("evaluation.figures=false", "evaluation.every=1")
    result, summary = run(*path, *overrides, *short, f"run_dir={tmp_path / 'run'}")
    assert set(summary["metrics"]) == {"clustering", "kmeans_raw", "linear", "knn"}
    known = np.load(digits / "vectors.npz")["y"][:20]
    pairs = np.zeros((10, 10))
    np.add.at(pairs, (result.assignments[:20], known), 1)
    best = pairs[linear_sum_assignment(-pairs)].sum() / 20
    assert summary["metrics"]["clustering"]["acc"] == pytest.approx(best)
    assert len(pq.read_table(tmp_path / "run" / "assignments.parquet")) == 60


def test_fewer_labels_than_clusters_are_scored_once_there_is_a_head(tmp_path):
    source = load_digits()
    labels = np.where(np.arange(200) < 6, source.target[:200], -1)
    np.savez(tmp_path / "few.npz", x=source.data[:200], y=labels)
    path = ("data=npz", f"data.path={tmp_path / 'few.npz'}", "augmentation=noise")
    overrides = ("partition=iid", "partition.clients=2", "method.clustering_augmentation=null")
    rounds = ("method.representation_rounds=2", "method.clustering_rounds=2", "method.clusters=10")
    short = ("evaluation.figures=false", "evaluation.every=1", f"run_dir={tmp_path / 'run'}")
    _, summary = run(*path, *overrides, *rounds, *short)
    assert summary["status"] == "completed"
    assert 0.0 < summary["metrics"]["clustering"]["acc"] <= 1.0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "loss" in row and row.get("client") is None]
    assert ["clustering/acc" in row for row in rows] == [False, False, True, False]


def test_what_needs_labels_is_refused_without(digits):
    path = ("data=image_folder", f"data.path={digits / 'pictures'}", "data.mode=L")
    with pytest.raises(ConfigError) as refusal:
        Federation(compose(*SHORT, *path))
    assert str(refusal.value) == (
        "method.clusters=null: the data has no classes; set it to 2 or more."
    )
    with pytest.raises(DataError, match=r"Dirichlet needs labels, .* use partition=iid"):
        Federation(compose(*SHORT, *path, "partition=dirichlet"))
    for data in (path, ("data=npz", f"data.path={digits / 'vectors.npz'}")):
        method = f"method.target={__name__}:Supervised"
        with pytest.raises(DataError, match="samples have no label, and the method trains with"):
            Federation(compose("experiment=fedmcc_digits", *data, method))
    arrays = np.load(digits / "vectors.npz")
    labels = np.where(np.arange(len(arrays["x"])) < 6, 0, -1)
    np.savez(digits / "few.npz", x=arrays["x"], y=labels)
    few = ("data=npz", f"data.path={digits / 'few.npz'}")
    with pytest.raises(DataError, match=rf": {len(labels) - 6} of {len(labels)} samples have no"):
        Federation(compose("experiment=fedmcc_digits", *few, method))


def test_unknown_labels_are_a_column_of_their_own():
    samples = np.zeros((4, 1), np.float32)
    parts = [np.array([0, 1]), np.array([2, 3])]
    few = DataArrays(name="d", samples=samples, labels=np.array([0, 1, -1, 0]), classes=("a", "b"))
    counts, names = class_spread(few, parts)
    assert (counts.tolist(), names) == ([[1, 1, 0], [1, 0, 1]], ("a", "b", "unlabelled"))
    counts, names = class_spread(DataArrays(name="d", samples=samples), parts)
    assert (counts.tolist(), names) == ([[2], [2]], ("unlabelled",))


def test_clients_have_their_names_where_the_data_gives_them():
    parts = [np.array([1, 2]), np.array([0])]
    samples, owners = np.zeros((3, 1), np.float32), np.array([1, 0, 0])
    data = DataArrays(name="d", samples=samples, owners=owners, owner_names=("bonn", "rome"))
    assert client_names(data, parts) == ("bonn", "rome")
    assert client_names(data, [np.array([0, 1]), np.array([2])]) == ()
    table = ClassTable(np.array([[1, 2], [3, 4]]), "ab", ("a-rather-long-hospital", "[red]"))
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(table)
    names = [line.split()[0] for line in stream.getvalue().splitlines()[2:4]]
    assert names == ["a-rather-long...", "[red]"]


def test_a_classifier_whose_test_set_has_no_label_is_scored_on_the_training_set(tmp_path):
    source, path = load_digits(), tmp_path / "vectors.npz"
    np.savez(path, x=source.data[:60], y=source.target[:60], tx=source.data[:9], ty=[-1] * 9)
    data = "data=npz", f"data.path={path}", "data.test_samples=tx", "data.test_labels=ty"
    keys = "experiment=fedavg", "method.rounds=2", "method.epochs=1", "encoder=mlp"
    quick = "evaluation.every=1", "evaluation.figures=false", f"run_dir={tmp_path / 'run'}"
    overrides = (*keys, *data, "data.split=train", "cluster=serial", "tracking.progress=none")
    result = Federation(compose(*overrides, *quick)).run()
    assert set(result.metrics) >= {"train"}
    assert "test" not in result.metrics
    rows = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    rounds = [row for row in map(json.loads, rows) if row["scope"] == "server"]
    assert "train/acc" in rounds[0]


def test_sizes_of_clusters_are_told_where_nothing_scores_them(tmp_path):
    vectors = np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]], [20, 25, 15], axis=0)
    np.savez(tmp_path / "x.npz", x=vectors + np.random.default_rng(0).normal(0, 0.1, (60, 2)))
    view = Silent()
    words = ("experiment=kmeans", "data=npz", f"data.path={tmp_path}/x.npz", "partition=iid")
    keys = ("partition.clients=2", "method.clusters=3", "cluster=serial", *QUIET)
    Federation(compose(*words, *keys, f"run_dir={tmp_path}/run"), view).run()
    assert "60 samples are in 3 clusters, of 25, 20, 15." in view.notes


def test_sizes_of_many_clusters_are_a_range():
    many = np.repeat(np.arange(11), np.arange(1, 12))
    assert sizes_in_words(many) == "66 samples are in 11 clusters, of 1 to 11."
    assert sizes_in_words(np.array([-1, 0, 0])) == "2 samples are in 1 cluster, of 2."
    assert sizes_in_words(None) == ""
