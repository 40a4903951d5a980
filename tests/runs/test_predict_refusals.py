"""What `ray_jobs.predict` refuses: one sentence and exit code 2."""

from pathlib import Path

import numpy as np
import pytest

from ray_jobs.predict import main


@pytest.fixture
def ran(finished_run):
    return finished_run.run_dir


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = np.zeros((3, 1, 8, 8), dtype=np.uint8)
    np.save("good.npy", images)
    np.save("five.npy", images[..., None])
    np.save("float.npy", images / 255)
    np.save("features.npy", np.zeros((3, 64), dtype=np.float32))
    np.save("none.npy", images[:0])
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez("two.npz", a=images, b=images)
    np.savez("objects.npz", samples=np.array([{}, {}]))
    Path("noise.npy").write_bytes(b"noise")
    Path("noise.parquet").write_bytes(b"noise")
    Path("noise.txt").write_text("noise")
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
    "model=1": "model=1: not a text; quote it twice, as model='\"1\"'.",
    "input=nowhere": "nowhere: there is no such file or folder; give a folder of pictures, or a",
    "input=noise.txt": "noise.txt: its kind is unknown; give a folder of pictures, or a .npy,",
    "input=folder": "folder: there are no pictures (",
    "input=five.npy": f"five.npy: it has shape (3, 1, 8, 8, 1) and type uint8, {SHAPE}",
    "input=float.npy": f"float.npy: it has shape (3, 1, 8, 8) and type float64, {SHAPE}",
    "input=features.npy": f"features.npy: it has shape (3, 64) and type float32, {SHAPE}",
    "input=none.npy": "none.npy: it holds no sample (shape (0, 1, 8, 8)); give at least one.",
    "input=objects.npy": "objects.npy: it cannot be read (",
    "input=objects.npz": "objects.npz: it cannot be read (it holds Python objects, which are never",
    "input=two.npz": "two.npz: it has the arrays a, b; name the one with the samples samples, x or",
    "input=noise.npy": "noise.npy: it cannot be read (",
    "input=noise.parquet": "noise.parquet: it cannot be read (",
    "input=empty.csv": "empty.csv: it holds no row; give at least one.",
    "input=words.csv": "words.csv: it has the columns word; it needs image, path, a list of",
    "input=lost.csv": "lost.png: there is no such file; put it there, or take its entry out.",
    "output=there.parquet": "output=there.parquet: it is there already; choose another name, or",
    "output=blocked/out.parquet": "output=blocked/out.parquet: it cannot be written there (",
    "batch_size=0": "batch_size=0: must be at least 1.",
    "batchsize=2": "batchsize=2: there is no such key; did you mean batch_size?",
    "cluster.num_actor=2": "cluster.num_actor=2: there is no such key; did you mean cluster.num_",
    "accelerator=gpu": "accelerator=gpu: must be one of auto, cpu, cuda",
    "embedding=maybe": "embedding=maybe: must be true or false.",
    "model.path=x": "model.path=x: model has a value of its own already.",
    "~output": "~output: nothing is set yet; leave it out.",
}  # fmt: skip


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
