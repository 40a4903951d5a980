"""Training on samples that are streamed from files has the bits of training in memory."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from coterie import Federation, compose
from coterie.errors import DataError
from coterie.jobs.import_data import main as import_data

TRAINING = (
    "experiment=fedcc_digits",
    "cluster=serial",
    "executor=bare",
    "encoder=mlp",
    "augmentation=natural",
    "partition.clients=3",
    "method.rounds=2",
    "method.epochs=2",
    "method.batch_size=16",
    "evaluation.every=1",
    "evaluation.knn_k=3",
    "evaluation.figures=false",
    "tracking.progress=none",
    "data.size=16",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Pictures of four classes, and the same ones in shards."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(160):
        path = root / "pictures" / f"class_{number % 4}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, (18 + number % 3, 20, 3)) + 30 * (number % 4)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    command = ["data=class_folders", f"data.path={root / 'pictures'}", f"out={root / 'shards'}"]
    assert import_data(command) == 0
    return root


def trained(run_dir, *keys):
    """The final weights and the rows of metrics.jsonl, without times."""
    ran = Federation(compose(*TRAINING, *keys, f"run_dir={run_dir}")).run()
    assert not ran.failures
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
    return load_file(run_dir / "model" / "model.safetensors"), timeless


@pytest.fixture(scope="module")
def in_memory(folders):
    return trained(folders / "memory", "data=class_folders", f"data.path={folders / 'pictures'}")


STREAMED = {
    "folders": ("data=class_folders", "data.path={root}/pictures", "data.stream=true"),
    "shards": ("data=shards", "data.path={root}/shards"),
    "shards in memory": ("data=shards", "data.path={root}/shards", "data.stream=false"),
}


@pytest.mark.parametrize("keys", STREAMED.values(), ids=STREAMED)
def test_weights_and_metrics_have_the_same_bits(folders, tmp_path, in_memory, keys):
    weights, rows = trained(tmp_path / "run", *(key.format(root=folders) for key in keys))
    expected, expected_rows = in_memory
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[key], expected[key]) for key in weights)
    assert rows == expected_rows


@pytest.mark.slow
@pytest.mark.ray
def test_actors_read_the_shards_themselves(folders, tmp_path, in_memory):
    keys = ("data=shards", f"data.path={folders / 'shards'}", "cluster=local")
    weights, rows = trained(tmp_path / "run", *keys, "cluster.num_actors=2")
    expected, expected_rows = in_memory
    assert all(np.array_equal(weights[key], expected[key]) for key in expected)
    assert rows == expected_rows


@pytest.mark.parametrize("stream", [pytest.param("false", marks=pytest.mark.slow), "true"])
def test_what_is_skipped_is_listed_in_the_run_directory(folders, tmp_path, in_memory, stream):
    pictures = tmp_path / "pictures"
    shutil.copytree(folders / "pictures", pictures)
    (pictures / "class_1" / "bad.png").write_bytes(b"no picture")
    keys = ("data=class_folders", f"data.path={pictures}", "data.on_error=skip")
    run_dir = tmp_path / "run"
    weights, _ = trained(run_dir, *keys, f"data.stream={stream}")
    assert all(np.array_equal(weights[key], in_memory[0][key]) for key in weights)
    assert (run_dir / "skipped.csv").read_text().splitlines() == [
        "file,reason",
        f"{pictures}/class_1/bad.png,is not a readable picture",
    ]
    (pictures / "class_2" / "worse.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"skipped\.csv: other pictures"):
        trained(run_dir, *keys, f"data.stream={stream}", "resume=true", "method.rounds=3")
