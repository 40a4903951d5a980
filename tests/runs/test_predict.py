"""`ray_jobs.predict`: the run's own samples give its own bits; inputs of every kind; refusals."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from coterie.commands.compose import compose
from coterie.run.setup import assemble
from ray_jobs.predict import main
from tests.finished_runs import TINY, WITHOUT_CLUSTERS, train


@pytest.fixture
def ran(finished_run):
    return finished_run.run_dir


@pytest.fixture(scope="module")
def samples():
    return assemble(compose(*TINY)).data.samples


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def predict(run, source, *more):
    code = main([f"model={run}", f"input={source}", "output=out.parquet", *more])
    assert code == 0
    return pq.read_table("out.parquet")


def assert_the_runs_own(run, table):
    own = pq.read_table(run / "assignments.parquet")
    for column in ("sample", "cluster", "confidence"):
        assert table[column].equals(own[column]), column


def write(kind, samples):
    """The samples in a file or folder of some kind, in an order that its reader keeps."""
    if kind == "npy":
        np.save("x.npy", samples)
    elif kind == "npz":
        np.savez_compressed("x.npz", samples=samples[:, 0], labels=np.zeros(len(samples)))
    elif kind == "folder":
        folder = Path("x")
        folder.mkdir()
        for row, pixels in enumerate(samples[:, 0]):
            Image.fromarray(pixels).save(folder / f"{row:04d}.png")
        return "x"
    elif kind == "parquet":
        write("folder", samples)
        encoded = [Path(f"x/{row:04d}.png").read_bytes() for row in range(len(samples))]
        names = [f"digit {row}" for row in range(len(samples))]
        pq.write_table(
            pa.table({"id": names, "image": [{"bytes": b} for b in encoded]}),
            "x.parquet",
            row_group_size=70,
        )
    elif kind == "csv":
        write("folder", samples)
        with Path("x.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["path"], *([f"x/{i:04d}.png"] for i in range(200))])
    return f"x.{kind}"


@pytest.mark.parametrize("kind", ["npy", "npz", "folder", "parquet", "csv"])
def test_the_runs_own_samples_give_its_own_assignments_to_the_bit(ran, samples, kind):
    table = predict(ran / "model", write(kind, samples))
    assert_the_runs_own(ran, table)
    first = {"folder": "0000.png", "parquet": "digit 0", "csv": "x/0000.png"}.get(kind)
    assert ("name" in table.column_names) == (first is not None)
    if first:
        assert table["name"][0].as_py() == first
    assert sorted(path.name for path in Path().iterdir()) == sorted(
        {"out.parquet", f"x.{kind}" if kind != "folder" else "x", *(["x"] if first else [])}
    )


def test_a_method_without_clusters_predicts_by_its_centroids(tmp_path, samples):
    run = train(tmp_path / "run", *WITHOUT_CLUSTERS).run_dir
    assert_the_runs_own(run, predict(run, write("npy", samples)))


def test_embeddings_are_written_when_asked_for(ran, samples):
    table = predict(ran, write("npy", samples), "embedding=true")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 16)
    from coterie import load_model

    given = load_model(ran)(torch.from_numpy(samples)).embedding
    written = np.stack(table["embedding"].to_numpy())
    np.testing.assert_array_equal(written, given.detach().numpy())


def test_other_sizes_and_modes_are_fitted_with_one_warning_each(ran, samples, caplog):
    twice = samples.repeat(2, axis=2).repeat(2, axis=3)  # shrunk, each pixel is itself again
    colour = np.ascontiguousarray(twice.repeat(3, axis=1).transpose(0, 2, 3, 1))
    np.save("x.npy", colour)
    table = predict(ran, "x.npy", "batch_size=64")
    assert [record.message for record in caplog.records] == [
        "200 of 200 images were resized to 8×8.",
        "200 of 200 pictures were converted to L (200 from RGB).",
    ]
    own = pq.read_table(ran / "assignments.parquet")
    agree = np.mean(table["cluster"].to_numpy() == own["cluster"].to_numpy())
    assert agree > 0.8  # antialiasing blurs a little


def test_a_failure_half_way_leaves_no_output(ran, samples, capsys):
    folder = write("folder", samples)
    Path("x/0150.png").write_bytes(b"no picture")
    assert main([f"model={ran}", f"input={folder}", "output=out.parquet", "batch_size=50"]) == 2
    assert "x/0150.png is no picture that can be read" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in Path().iterdir()] == ["x"]
