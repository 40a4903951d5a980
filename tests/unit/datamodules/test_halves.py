"""A test half is numbered by the training half's classes, also where it lacks some of them."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from coterie.datamodules.importing import import_data
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.shard_files import INDEX
from coterie.datamodules.shards import Shards
from coterie.datamodules.webdataset import WebDataset
from coterie.errors import DataError

TRAIN, TEST = ("ant", "bee", "cat"), ("cat", "bee", "cat")


def png(level):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def saved(folder, labels, names=None):
    """A half as Hugging Face `datasets` saves it."""
    folder.mkdir(parents=True)
    values = pa.array(labels)
    vectors = pa.array([[float(n), 1.0] for n in range(len(labels))])
    table = pa.table({"vector": vectors, "label": values})
    with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    if names is not None:
        label = {"names": list(names), "_type": "ClassLabel"}
        (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": label}}))


def manifest(path):
    keys = {"path": str(path), "picture_column": "vector", "label_column": "label"}
    return Manifest(Manifest.Config(**keys))


def tars(folder, labels, extension="cls"):
    folder.mkdir(parents=True)
    with tarfile.open(folder / "0.tar", "w") as archive:
        for number, label in enumerate(labels):
            for end, content in ((extension, label.encode()), ("png", png(number))):
                entry = tarfile.TarInfo(f"{number:03}.{end}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def check(data):
    found = data.arrays()
    assert found.classes == TRAIN
    assert found.labels.tolist() == [0, 1, 2]
    assert found.test_labels.tolist() == [2, 1, 2]


def test_of_a_saved_data_set(tmp_path):
    saved(tmp_path / "train", TRAIN)
    saved(tmp_path / "test", TEST)
    check(manifest(tmp_path))


def test_of_a_saved_data_set_with_names(tmp_path):
    saved(tmp_path / "train", [0, 1, 2], TRAIN)
    saved(tmp_path / "test", [2, 1, 2], TRAIN)
    check(manifest(tmp_path))


def test_a_saved_test_set_may_hide_its_labels(tmp_path):
    saved(tmp_path / "train", [0, 1, 2], TRAIN)
    saved(tmp_path / "test", [-1, -1], TRAIN)
    assert manifest(tmp_path).arrays().test_labels.tolist() == [-1, -1]


def test_of_tar_files(tmp_path):
    tars(tmp_path / "train", TRAIN)
    tars(tmp_path / "test", TEST)
    check(WebDataset(WebDataset.Config(path=str(tmp_path))))


def test_the_extension_of_labels_may_be_in_capitals(tmp_path):
    tars(tmp_path / "train", TRAIN, "Label")
    keys = {"path": str(tmp_path / "train"), "label_extension": "Label"}
    assert WebDataset(WebDataset.Config(**keys)).arrays().labels.tolist() == [0, 1, 2]


def test_of_shards_and_of_those_that_were_numbered_apart(tmp_path):
    tars(tmp_path / "tars" / "train", TRAIN)
    tars(tmp_path / "tars" / "test", TEST)
    out = tmp_path / "out"
    data = WebDataset(WebDataset.Config(path=str(tmp_path / "tars")))
    import_data(data, out, shard_bytes=1 << 20)
    check(Shards(Shards.Config(path=str(out), size=4)))
    path = out / "test" / INDEX
    index = json.loads(path.read_text())
    for other in (["cat", "ant", "bee"], ["ant", "bee", "dog"]):
        path.write_text(json.dumps({**index, "classes": other}))
        with pytest.raises(DataError, match="test shards have other classes than its training"):
            Shards(Shards.Config(path=str(out), size=4)).arrays()


def test_other_pictures_make_another_index(tmp_path):
    indices = []
    for name, labels in (("one", TRAIN), ("two", TRAIN[::-1])):
        tars(tmp_path / name, labels)
        data = WebDataset(WebDataset.Config(path=str(tmp_path / name)))
        import_data(data, tmp_path / f"{name} out", shard_bytes=1 << 20)
        indices.append((tmp_path / f"{name} out" / INDEX).read_text())
    assert indices[0] != indices[1]  # a copy of the first is not taken for the second


def test_labels_of_a_test_set_alone_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((4, 2)), t=np.zeros((2, 2)), tl=np.array([0, 1]))
    keys = {"path": str(path), "test_samples": "t", "test_labels": "tl"}
    with pytest.raises(DataError, match=r"data\.test_labels=tl: the training samples have no"):
        NPZ(NPZ.Config(**keys)).arrays()


def test_files_of_a_folder_may_store_labels_in_other_widths(tmp_path):
    for number, kind in enumerate((pa.int64(), pa.int32())):
        columns = {"vector": pa.array([[1.0, 2.0]] * 2), "label": pa.array([number, 2], kind)}
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    assert manifest(tmp_path).arrays().labels.tolist() == [0, 2, 1, 2]


def header(name, size, kind=b"0"):
    """The header of a member of a tar file, with any size."""
    field = size.to_bytes(12, "big", signed=True)
    entry = tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)
    head = bytearray(entry[:512])
    head[124:136] = bytes([0xFF if size < 0 else 0x80]) + field[1:]
    head[156:157] = kind
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "last",
    [
        header("b.png", -1024),
        header("b.png", 1 << 60),
        header("x", 1 << 40, b"x"),
        header("x", 512, b"x") + b"11 size=-1\n".ljust(512, b"\0") + header("c.png", 0),
    ],
)
def test_a_tar_file_that_lies_about_sizes_is_refused_in_a_sentence(tmp_path, last):
    tars(tmp_path / "tars", TRAIN)
    path = tmp_path / "tars" / "0.tar"
    with tarfile.open(path) as archive:
        end = max(member.offset_data + 512 for member in archive)
    path.write_bytes(path.read_bytes()[:end].rstrip(b"\0").ljust(end, b"\0") + last + bytes(1024))
    with pytest.raises(DataError, match=r"0\.tar: it cannot be read as a tar file \("):
        WebDataset(WebDataset.Config(path=str(path))).arrays()
