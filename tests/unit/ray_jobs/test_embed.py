"""`coterie embed`: vectors in shards that a run reads, and jobs that were killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coterie import Federation
from coterie.commands.compose import compose
from coterie.contract import seeded
from coterie.contract.clusterer import to_unit
from coterie.datamodules.digits import Digits
from coterie.datamodules.shards import Shards
from coterie.jobs import embed, import_data, predict
from coterie.networks.encoders import ConvNet3

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ("data=digits", "encoder=conv3", "encoder.width=4", "encoder.features=6", "seed=3")
SMALL = (*DIGITS, "data.limit=100", "shard_samples=32", "batch_size=20")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("embedded") / "out"
    assert embed.main([*SMALL, f"out={out}"]) == 0
    return out


def test_shards_hold_the_representations_with_their_labels(written) -> None:
    data = Digits(Digits.Config(limit=100)).arrays()
    with seeded(3):
        encoder = ConvNet3(width=4, features=6).build(data.shape).eval()
    found = Shards(Shards.Config(path=str(written))).arrays()
    with torch.no_grad():
        wanted = encoder(to_unit(torch.tensor(data.samples))).numpy()
    np.testing.assert_allclose(found.samples[:], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.labels, data.labels)
    assert found.classes == data.classes
    assert json.loads((written / "embedding.json").read_text())["encoder"]["width"] == 4


def test_a_method_runs_on_them(written, tmp_path) -> None:
    config = compose(
        "experiment=kfed_digits",
        "data=shards",
        "partition=iid",
        f"data.path={written}",
        "cluster=serial",
        "partition.clients=2",
        "evaluation.figures=false",
        "evaluation.linear_probe=false",
        "tracking.progress=none",
        f"run_dir={tmp_path}/run",
    )
    assert Federation(config).run().exit_code == 0


def test_new_pictures_are_assigned_by_their_embeddings(tmp_path) -> None:
    pixels = Digits(Digits.Config(limit=60)).arrays().samples[:, 0]
    for half, own in {"old": pixels[:40], "new": pixels[40:]}.items():
        (tmp_path / half).mkdir()
        for row, image in enumerate(own):
            Image.fromarray(image).save(tmp_path / half / f"{half}{row:02d}.png")
        command = [f"data.path={tmp_path}/{half}", f"out={tmp_path}/of_{half}"]
        chosen = ["data=image_folder", "encoder=conv3", "encoder.width=4", "encoder.features=6"]
        assert embed.main([*chosen, *command]) == 0
    config = compose(
        "experiment=kfed",
        "data=shards",
        f"data.path={tmp_path}/of_old",
        "encoder=raw",
        "method.clusters=3",
        "cluster=serial",
        "partition=iid",
        "partition.clients=2",
        f"run_dir={tmp_path}/run",
    )
    assert Federation(config).run().exit_code == 0
    output = tmp_path / "assigned.csv"
    given = [f"model={tmp_path}/run", f"input={tmp_path}/of_new", f"output={output}"]
    assert predict.main(given) == 0
    rows = list(csv.DictReader(output.open(encoding="utf-8")))
    assert [row["name"] for row in rows] == [f"new{row:02d}.png" for row in range(20)]
    assert {row["cluster"] for row in rows} <= {"0", "1", "2"}
    assert len({row["cluster"] for row in rows}) > 1


def test_a_refused_job_leaves_the_folder_to_the_next(tmp_path, capsys) -> None:
    out = f"out={tmp_path}/out"
    picture = tmp_path / "pictures" / "broken.png"
    picture.parent.mkdir()
    picture.write_bytes(b"rubbish")
    refused = ["data=image_folder", f"data.path={picture.parent}", "encoder=conv3", out]
    assert embed.main(refused) == 2
    assert "broken.png is not a readable picture" in capsys.readouterr().err
    assert embed.main([*SMALL, out]) == 0


def test_a_killed_job_goes_on_to_the_same_bytes(tmp_path) -> None:
    arguments = [*DIGITS, "shard_samples=100", "batch_size=1"]
    out, whole = tmp_path / "killed", tmp_path / "whole"
    assert embed.main([*arguments, f"out={whole}"]) == 0
    job = subprocess.Popen(
        [sys.executable, "-m", "coterie.jobs.embed", *arguments, f"out={out}"],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not (out / "shard-00001.arrow").is_file() and time.monotonic() < until:
        time.sleep(0.01)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert not (out / "index.json").exists()
    first = (out / "shard-00000.arrow").stat().st_mtime_ns
    assert embed.main([*arguments, f"out={out}"]) == 0
    assert (out / "shard-00000.arrow").stat().st_mtime_ns == first
    partial = {name for name in files(out) if "shard" not in name and not name.endswith(".json")}
    assert {k: v for k, v in files(out).items() if k not in partial} == files(whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data=digits", "out=x"), "encoder: none is chosen; give encoder=CHOICE"),
        (("encoder=conv3", "out=x"), "data: none is chosen"),
        (("method=fedmcc", *SMALL, "out=x"), "method=fedmcc: choose only data, encoder here"),
        ((*SMALL,), "out: a value is needed"),
        ((*SMALL, "out=x", "encoder.widht=4"), "did you mean encoder.width?"),
    ],
)
def test_a_wrong_command_is_refused(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert embed.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(written, tmp_path, capsys) -> None:
    before = files(written)
    assert embed.main([*SMALL, "encoder.width=5", f"out={written}"]) == 2
    assert "other data or another encoder" in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("mine")
    assert embed.main([*SMALL, f"out={tmp_path}"]) == 2
    assert "it is not empty" in capsys.readouterr().err
    assert embed.main([*SMALL, f"out={written}"]) == 0
    assert files(written) == before


@pytest.mark.parametrize("made", ["shard-000001.parquet", "test"])
def test_a_folder_with_links_to_elsewhere_is_refused(made, written, tmp_path, capsys) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    (out / "embedding.json").write_bytes((written / "embedding.json").read_bytes())
    (out / made).symlink_to(elsewhere)
    assert embed.main([*SMALL, f"out={out}"]) == 2
    assert f"{out / made} is a link" in capsys.readouterr().err
    assert not elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("command", ["embed", "import_data"])
def test_the_folder_of_another_user_is_refused(command, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 65534, 65534)
    keys = SMALL if command == "embed" else ("data=digits",)
    job = embed if command == "embed" else import_data
    assert job.main([*keys, f"out={out}"]) == 2
    assert "it belongs to another user" in capsys.readouterr().err
    assert not [*out.iterdir()]
