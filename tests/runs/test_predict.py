"""`coterie predict`: the run's own samples give its own bits; inputs of every kind; refusals."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from coterie import Federation
from coterie.commands.compose import compose
from coterie.jobs.predict import main
from coterie.run.setup import assemble
from tests.builders.runs import TINY, WITHOUT_CLUSTERS, train


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
    assert "x/0150.png is not a readable picture" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in Path().iterdir()] == ["x"]


def test_pictures_that_cannot_be_read_are_left_out_if_asked(ran, samples, caplog, capsys):
    folder = Path(write("folder", samples[:5]))
    (folder / "0002.png").write_bytes(b"no picture")
    keys = [f"model={ran}", f"input={folder}", "output=out.parquet"]
    assert main(keys) == 2
    assert "on_error=skip" in capsys.readouterr().err
    assert main([*keys, "on_error=skip", "batch_size=1"]) == 0
    assert pq.read_table("out.parquet")["name"].to_pylist() == [f"000{n}.png" for n in (0, 1, 3, 4)]
    (told,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert told.startswith("1 of 5 pictures cannot be read and are left out, the first because ")
    for path in folder.iterdir():
        path.write_bytes(b"no picture")
    assert main([*keys[:2], "output=more.parquet", "on_error=skip"]) == 2
    assert not Path("more.parquet").exists()


@pytest.fixture
def inputs(tmp_path, elsewhere):
    """Files of many kinds in the current folder, most of which are refused."""
    images = np.zeros((3, 1, 8, 8), dtype=np.uint8)
    np.save("good.npy", images)
    np.save("five.npy", images[..., None])
    np.save("float.npy", images + 0.5 + 255)
    np.save("features.npy", np.zeros((3, 64), dtype=np.float32))
    np.save("none.npy", images[:0])
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez("two.npz", a=images, b=images)
    np.savez("objects.npz", samples=np.array([{}, {}]))
    Path("noise.npy").write_bytes(b"noise")
    Path("noise.parquet").write_bytes(b"noise")
    Path("noise.txt").write_text("noise")
    Path("noise.bin").write_text("noise")
    Path("empty.csv").write_text("path\n")
    Path("words.csv").write_text("word\nnoise\n")
    Path("lost.csv").write_text("path\nlost.png\n")
    Path("folder").mkdir()
    Path("there.parquet").write_text("mine")
    Path("blocked").write_text("a file")


SHAPE = "but the model takes uint8 images of shape (1, 8, 8); give (n, height, width) or"
REFUSED = {
    "model=": "model=: must not be empty.",
    "model=nowhere": "nowhere: there is no such folder; give a run's folder or its model/.",
    "model=folder": "folder: no model.json in it; give a finished run's folder or its model/.",
    "model=1": "1: there is no such folder; give a run's folder or its model/.",
    "input=nowhere": "nowhere: there is no such file or folder; give a folder of pictures or",
    "input=noise.bin": "noise.bin: its kind is unknown; give a folder of pictures or",
    "input=noise.txt": "noise.txt: it cannot be read (",
    "input=folder": "folder: there are no pictures (",
    "input=five.npy": f"five.npy: it has shape (3, 1, 8, 8, 1) and type uint8, {SHAPE}",
    "input=float.npy": "float.npy: it is of decimal numbers in 255.5..255.5; convert it to the",
    "input=features.npy": f"features.npy: it has shape (3, 64) and type float32, {SHAPE}",
    "input=none.npy": "none.npy: it holds no sample (shape (0, 1, 8, 8)); give at least one.",
    "input=objects.npy": "objects.npy: it cannot be read (",
    "input=objects.npz": "objects.npz: it cannot be read (it holds Python objects, which are never",
    "input=two.npz": "two.npz: it has the arrays a, b; name the one with the samples samples or x",
    "input=noise.npy": "noise.npy: it cannot be read (",
    "input=noise.parquet": "noise.parquet: it cannot be read (",
    "input=empty.csv": "empty.csv: it holds no row; give at least one.",
    "input=words.csv": "words.csv: it has the columns word; it needs image, path, a list of",
    "input=lost.csv": "lost.png: there is no such file; put it there, or take its entry out.",
    "output=there.parquet": "output=there.parquet: it already exists; choose another name, or",
    "output=out.txt": "output=out.txt: its kind is unknown; name it .parquet or .csv.",
    "output=blocked/out.parquet": "output=blocked/out.parquet: it cannot be written there (",
    "batch_size=0": "batch_size=0: must be at least 1.",
    "batchsize=2": "batchsize=2: there is no such key; did you mean batch_size?",
    "cluster=gpu": "cluster=gpu: must be one of auto, ray, serial.",
    "cluster.num_actor=2": "cluster.num_actor=2: there is no such key; did you mean cluster.num_",
    "accelerator=gpu": "accelerator=gpu: must be one of auto, cpu, cuda",
    "embedding=maybe": "embedding=maybe: must be true or false.",
    "model.path=x": "has no keys of its own; leave one of the two out.",
    "~output": "~output: nothing is set yet; leave it out.",
}


def test_a_csv_holds_what_the_parquet_does(ran, samples):
    source = write("folder", samples[:30])
    table = predict(ran, source)
    assert main([f"model={ran}", f"input={source}", "output=out.csv", "cluster=serial"]) == 0
    again = pa.csv.read_csv("out.csv")
    assert again.column_names == table.column_names
    for column in table.column_names:
        assert again[column].cast(table[column].type).equals(table[column]), column
    assert Path("out.csv").stat().st_mode & 0o777 == 0o600


def test_a_csv_of_embeddings_is_refused(ran, capsys):
    assert main([f"model={ran}", "input=x", "output=out.csv", "embedding=true"]) == 2
    told = capsys.readouterr().err
    assert "output=out.csv: CSV cannot hold embeddings; name it .parquet." in told


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("argument", REFUSED)
def test_one_sentence_and_exit_code_2(ran, capsys, argument):
    usual = {"model": str(ran), "input": "good.npy", "output": "out.parquet"}
    key = argument.partition("=")[0]
    arguments = [f"{name}={value}" for name, value in usual.items() if name != key]
    assert main([*arguments, argument]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not Path("out.parquet").exists()
    assert not list(Path().rglob(".*.tmp"))
    sentence = captured.err.strip().splitlines()[-1]
    assert REFUSED[argument] in sentence
    assert sentence.endswith((".", "?"))


LIES = {
    "no input": {"input": None},
    "a list": {"input": [1, 8, 8]},
    "text": {"input": {"shape": "ab", "dtype": "uint8", "mode": "L"}},
    "a side below zero": {"input": {"shape": [1, -8, 8], "dtype": "uint8", "mode": "L"}},
    "no side": {"input": {"shape": [], "dtype": "uint8", "mode": "L"}},
    "huge pictures": {"input": {"shape": [1, 40_000, 40_000], "dtype": "uint8", "mode": "L"}},
    "a width of text": {"features": "x"},
    "a width below zero": {"features": -1},
    "clusters of text": {"clusters": "x"},
}


@pytest.mark.parametrize("kind", LIES)
def test_a_model_that_lies_about_itself_is_refused(ran, capsys, kind):
    shutil.copytree(ran / "model", "model")
    path = Path("model/model.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | LIES[kind]))
    np.save("x.npy", np.zeros((3, 1, 8, 8), np.uint8))
    assert main(["model=model", "input=x.npy", "output=out.parquet", "embedding=true"]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert told[0].startswith("model/model.json: ")
    assert told[0].endswith("; copy the model again.")


@pytest.mark.parametrize("key", ["model", "input"])
def test_what_is_needed_is_asked_for(capsys, key):
    given = [f"{name}=x" for name in ("model", "input") if name != key]
    assert main(given) == 2
    assert capsys.readouterr().err == f"{key}: a value is needed; give {key}=….\n"


def test_help_shows_every_key(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "batch_size=512" in text
    assert "cluster.backend=auto" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_classifier_names_the_classes(tmp_path, samples):
    keys = ("data.limit=200", "cluster=serial", "method.rounds=1", "evaluation.figures=false")
    run = tmp_path / "run"
    Federation(compose("experiment=fedavg_digits", *keys, f"run_dir={run}")).run()
    assert json.loads((run / "model" / "model.json").read_text())["classifies"]
    table = predict(run, write("npy", samples))
    names = [str(own) for own in table["cluster"].to_pylist()]  # digits are called so
    assert table["cluster_name"].to_pylist() == names
    description = run / "model" / "model.json"
    few = json.loads(description.read_text()) | {"classes": ["0", "1"]}
    description.write_text(json.dumps(few))
    assert main([f"model={run}", "input=x.npy", "output=more.parquet"]) == 2
