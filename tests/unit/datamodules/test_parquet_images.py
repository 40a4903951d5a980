"""CIFAR-10 and USPS: the layouts their files come in, and broken files."""

import bz2
import hashlib
import io
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision
from PIL import Image

from coterie.datamodules.cifar10 import CIFAR10
from coterie.datamodules.usps import USPS
from coterie.errors import DataError


def random_images(count, *shape):
    return np.random.default_rng(5).integers(0, 256, (count, *shape), np.uint8)


def encode(image, form="PNG"):
    stream = io.BytesIO()
    pixels = image.transpose(1, 2, 0)
    options = {"lossless": True} if form == "WEBP" else {}
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(
        stream, form, **options
    )
    return stream.getvalue()


def write_parquet(path, images, labels, column="image", form="PNG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": encode(image, form), "path": None} for image in images]
    pictures = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pq.write_table(pa.table({column: pictures, "label": pa.array(labels, pa.int64())}), path)


def load(cls, root, **keys):
    return cls(cls.Config(root=str(root), **keys)).arrays()


@pytest.mark.parametrize(
    ("names", "column", "form"),
    [
        ("cifar10/{half}.parquet", "image", "WEBP"),
        ("cifar10/{half}-0000{shard}-of-00002.parquet", "img", "PNG"),
        ("cifar10/plain_text/{half}-0000{shard}-of-00002.parquet", "img", "PNG"),
    ],
)
def test_cifar10_parquet_layouts(tmp_path, names, column, form):
    images, labels = random_images(20, 3, 32, 32), np.arange(20) % 10
    shards = 2 if "{shard}" in names else 1
    for half, rows in (("train", np.arange(12)), ("test", np.arange(12, 20))):
        for shard, part in enumerate(np.array_split(rows, shards)):
            path = tmp_path / names.format(half=half, shard=shard)
            write_parquet(path, images[part], labels[part], column, form)
    data = load(CIFAR10, tmp_path, split="all")
    np.testing.assert_array_equal(data.samples, images)
    np.testing.assert_array_equal(data.labels, labels)
    few = load(CIFAR10, tmp_path, limit=4, limit_test=3)
    assert (few.samples.shape, few.test_samples.shape) == ((4, 3, 32, 32), (3, 3, 32, 32))
    assert data.classes[0] == "airplane"
    assert data.samples.flags.c_contiguous


def test_many_pictures_keep_their_order_across_threads(tmp_path):
    images = random_images(1300, 1, 4, 4)
    labels = images[:, 0, 0, 0].astype(np.int64) % 10
    write_parquet(tmp_path / "usps" / "train.parquet", images, labels)
    write_parquet(tmp_path / "usps" / "test.parquet", images[:3], labels[:3])
    data = load(USPS, tmp_path)
    np.testing.assert_array_equal(data.samples, images)
    np.testing.assert_array_equal(data.labels, labels)


def test_another_folder_is_another_data_set(tmp_path):
    for half in ("train", "test"):
        write_parquet(tmp_path / "mine" / f"{half}.parquet", random_images(2, 3, 8, 8), [0, 1])
    assert load(CIFAR10, tmp_path, folder="mine").name == "mine"
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="other: no train"):
        load(CIFAR10, tmp_path, folder="other")


def test_cifar10_pickles(tmp_path, monkeypatch):
    images, labels = random_images(6, 3, 32, 32), [3, 1, 4, 1, 5, 9]
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    sums = {}
    contents = {
        "data_batch_1": {"data": images[:4].reshape(4, -1), "labels": labels[:4]},
        "test_batch": {"data": images[4:].reshape(2, -1), "labels": labels[4:]},
        "batches.meta": {"label_names": list(CIFAR10.classes)},
    }
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    original = torchvision.datasets.CIFAR10
    with pytest.raises(DataError, match="cifar-10-batches-py is incomplete or corrupt"):
        load(CIFAR10, tmp_path)
    monkeypatch.setattr(original, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(original, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(original, "meta", {**original.meta, "md5": sums["batches.meta"]})
    data = load(CIFAR10, tmp_path)
    np.testing.assert_array_equal(data.samples, images[:4])
    np.testing.assert_array_equal(data.test_samples, images[4:])
    np.testing.assert_array_equal(data.test_labels, [5, 9])


def test_usps_bz2(tmp_path):
    pixels = np.array([[-1.0] * 256, [0.0] * 255 + [1.0]])
    lines = [
        f"{label} " + " ".join(f"{k + 1}:{value}" for k, value in enumerate(row))
        for label, row in zip((1, 10), pixels, strict=True)
    ]
    for name, part in (("usps.bz2", lines), ("usps.t.bz2", lines[1:])):
        (tmp_path / name).write_bytes(bz2.compress("\n".join(part).encode()))
    data = load(USPS, tmp_path)
    assert data.samples.shape == (2, 1, 16, 16)
    assert (data.samples[0].max(), data.samples[1, 0, 0, 0], data.samples[1, 0, 15, 15]) == (
        0,
        127,
        255,
    )
    np.testing.assert_array_equal(data.labels, [0, 9])
    np.testing.assert_array_equal(data.test_labels, [9])
    (tmp_path / "usps.bz2").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"usps\.bz2 cannot be read"):
        load(USPS, tmp_path)


def write_broken(kind, folder):
    images = random_images(2, 1, 16, 16)
    path = folder / "train.parquet"
    rows = {"image": [{"bytes": encode(one)} for one in images], "label": [0, 1]}
    if kind == "not parquet":
        folder.mkdir(parents=True)
        path.write_bytes(b"PAR1 and then nothing")
        return
    if kind == "no picture":
        rows["image"][1]["bytes"] = b"no picture"
    if kind == "no bytes":
        rows["image"][1]["bytes"] = None
    if kind == "other size":
        rows["image"][1]["bytes"] = encode(random_images(1, 1, 8, 8)[0])
    if kind == "label 10":
        rows["label"] = [0, 10]
    if kind == "no label":
        rows["label"] = [0, None]
    if kind == "columns":
        rows = {"picture": rows["image"], "label": rows["label"]}
    if kind == "no struct":
        rows["image"] = [1, 2]
    folder.mkdir(parents=True)
    pq.write_table(pa.table(rows), path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("not parquet", "cannot be read"),
        ("no picture", "row 1 is not a readable picture"),
        ("no bytes", "row 1, has no picture bytes"),
        ("other size", "row 0 has 16×16 pixels, but .* row 1 has 8×8"),
        ("label 10", "holds the label 10"),
        ("no label", "missing labels"),
        ("columns", "has the columns picture, label"),
        ("no struct", "image: int64"),
    ],
)
def test_broken_parquet_files_are_named(tmp_path, kind, message):
    write_broken(kind, tmp_path / "usps")
    with pytest.raises(DataError, match=f"train.parquet.*{message}") as refusal:
        load(USPS, tmp_path, split="train")
    assert "\n" not in str(refusal.value)


def test_the_broken_one_of_two_shards_is_named(tmp_path):
    images = random_images(2, 1, 16, 16)
    folder = tmp_path / "usps"
    write_parquet(folder / "train-00000-of-00002.parquet", images, [0, 1])
    rows = {"image": [{"bytes": b"no picture"}], "label": [2]}
    pq.write_table(pa.table(rows), folder / "train-00001-of-00002.parquet")
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet, row 0 is not a read"):
        load(USPS, tmp_path)


def test_missing_and_doubled_parquet_files(tmp_path):
    for cls, name in ((CIFAR10, "cifar10"), (USPS, "usps")):
        with pytest.raises(DataError, match=rf"no train\*.parquet in {tmp_path / name}.*data.root"):
            load(cls, tmp_path)
    images = random_images(2, 1, 16, 16)
    first = tmp_path / "usps" / "a" / "train-00000-of-00002.parquet"
    write_parquet(first, images, [0, 1])
    with pytest.raises(DataError, match=r"holds 1 files .* 2 shards"):
        load(USPS, tmp_path)
    write_parquet(tmp_path / "usps" / "b" / "train-00000-of-00001.parquet", images, [0, 1])
    with pytest.raises(DataError, match=r"in both .*a and .*b"):
        load(USPS, tmp_path)
