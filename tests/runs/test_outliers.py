"""Samples that belong to no cluster: in what a run leaves, in `predict` and on the page."""

import json
from collections import Counter

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.commands.compose import compose
from coterie.jobs import predict, show
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL

KEYS = ("experiment=prototypes", *SERIAL, "encoder=raw", "partition=iid", "partition.clients=3")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Three dense groups of 150 vectors and 60 vectors of none, and how many each group has."""
    drawn, folder = np.random.default_rng(0), tmp_path_factory.mktemp("vectors")
    groups = np.repeat([0, 1, 2, 3], [150, 150, 150, 60])
    dense = 6 * np.eye(6)[groups[:450]] + 0.5 * drawn.normal(size=(450, 6))
    x = np.concatenate([dense, drawn.uniform(-12, 12, (60, 6))]).astype(np.float32)
    order = drawn.permutation(len(x))
    np.savez(folder / "known.npz", x=x[order], y=groups[order])
    np.savez(folder / "unknown.npz", x=x[order])
    np.save(folder / "new.npy", np.concatenate([x[:2], np.full((1, 6), 90.0, np.float32)]))
    return folder


@pytest.fixture(scope="module")
def ran(vectors):
    view = Silent()
    data = ("data=npz", f"data.path={vectors}/unknown.npz", "method.clustering=hdbscan")
    Federation(compose(*KEYS, *data, f"run_dir={vectors}/run"), view).run()
    return vectors / "run", view


def test_clusters_and_outliers_are_found_without_labels_and_without_a_number(ran):
    run, view = ran
    clusters = Counter(pq.read_table(run / "assignments.parquet")["cluster"].to_pylist())
    assert clusters.keys() == {-1, 0, 1, 2}
    assert 50 <= clusters[-1] <= 70
    summary = json.loads((run / "summary.json").read_text())
    share = clusters[-1] / 510
    assert summary["metrics"] == {"outliers": {"share": share}, "clusters": {"number": 3}}
    told = f"3 clusters were found, and {share:.1%} of the samples belong to none."
    assert told in view.notes
    described = json.loads((run / "model" / "model.json").read_text())
    assert (described["clusters"], described["outliers"]) == (3, True)
    report = (run / "report.html").read_text()
    assert "3 clusters" in report
    assert "outliers" in report
    assert not [note for note in view.notes if "no clusters" in note]


def test_what_is_far_from_all_clusters_is_predicted_to_be_of_none(ran, vectors, tmp_path):
    run, _ = ran
    assert show.main([f"run={run}"]) == 0
    text = (run / "clusters.html").read_text()
    assert text.count("Outliers</h2>") == 1
    digest, _ = json.JSONDecoder().raw_decode(text.partition("MODEL = ")[2])
    names = {"0": "a", "1": "b", "2": "c", "-1": "outliers"}
    (tmp_path / "names.json").write_text(
        json.dumps({"model": digest, "names": names, "planes": {}})
    )
    keys = [f"model={run}", f"input={vectors}/new.npy"]
    assert predict.main([*keys, f"output={tmp_path}/plain.csv"]) == 0
    named = [f"output={tmp_path}/named.csv", f"clusters={tmp_path}/names.json"]
    assert predict.main([*keys, *named]) == 0
    plain, own = (pa_csv.read_csv(tmp_path / f"{n}.csv") for n in ("plain", "named"))
    first = plain["cluster"].to_pylist()
    assert first[:2] == [first[0]] * 2
    assert first[0] >= 0
    assert first[2] == own["cluster"].to_pylist()[2] == -1
    assert own["cluster_name"].to_pylist() == [*(2 * [names[str(first[0])]]), "outliers"]


def test_outliers_are_a_cluster_of_their_own_in_scores_and_figures(vectors, tmp_path):
    data = ("data=npz", f"data.path={vectors}/known.npz", "method.clustering=hdbscan")
    keys = ("evaluation.figures=true", f"run_dir={tmp_path}/run")
    view = Silent()
    result = Federation(compose(*KEYS, *data, *keys), view).run()
    assert result.metrics["clustering"]["acc"] > 0.97
    known = np.load(vectors / "known.npz")["y"]
    assert (known[result.assignments < 0] == 3).mean() > 0.9
    drawn = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert {"clusters.png", "confusion.png", "tsne.png"} <= drawn


def test_clients_that_keep_their_data_count_their_outliers(tmp_path):
    drawn = np.random.default_rng(0)
    for row in range(400):
        grey = np.full((4, 4), 40 + 160 * (row % 2)) + drawn.normal(scale=12.0, size=(4, 4))
        pixels = drawn.integers(0, 256, (4, 4)) if row % 8 == 7 else grey
        place = tmp_path / "sites" / "ab"[row // 200]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{row}.png")
    config = compose(
        *KEYS[:-2],
        "data=node_local",
        f"data.clients={{a: {tmp_path}/sites/a, b: {tmp_path}/sites/b}}",
        "data.source={target: coterie.datamodules.folders:ImageFolder, mode: L}",
        "method.clustering=hdbscan",
        f"run_dir={tmp_path}/run",
    )
    result = Federation(config).run()
    assert result.metrics["outliers"]["share"] == pytest.approx(1 / 8, abs=0.06)
    assert result.metrics["clusters"] == {"number": 2}
    assert show.main([f"run={tmp_path}/run"]) == 0
    text = (tmp_path / "run" / "clusters.html").read_text()
    assert 'id="cluster-1"' in text
    assert "data:image" not in text
