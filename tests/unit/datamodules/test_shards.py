"""Shards: the same samples as the folders, arrays and tables that they were imported from."""

import json

import cloudpickle
import numpy as np
import pytest
from PIL import Image

from coterie.contract.samples import StreamedSamples
from coterie.datamodules.folders import ClassFolders, ClientFolders
from coterie.datamodules.importing import import_data
from coterie.datamodules.npz import NPZ
from coterie.datamodules.shard_files import INDEX, ShardFiles
from coterie.datamodules.shards import Shards
from coterie.errors import DataError
from coterie.jobs.import_data import main

SMALL = 20_000
"""Bytes a shard: some pictures each."""


@pytest.fixture
def pictures(tmp_path):
    """Forty pictures of three modes and sizes, in folders of two classes."""
    rng, folder = np.random.default_rng(0), tmp_path / "pictures"
    for number in range(40):
        path = folder / "ab"[number % 2] / f"{number:02}.{('png', 'jpg')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (16 + number % 3, 20, 3) if number % 5 else (18, 20)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return folder


def imported(data, out, **options):
    return import_data(data, out, **{"shard_bytes": SMALL, **options})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("size", [12, (10, 14)])
def test_pictures_have_the_bits_of_their_folders(pictures, tmp_path, stream, size):
    found = imported(ClassFolders(ClassFolders.Config(path=str(pictures))), tmp_path / "out")
    assert found["train"].samples == 40
    assert len(found["train"].shapes) == 3
    assert len(list((tmp_path / "out").glob("shard-*.arrow"))) > 1
    expected = ClassFolders(ClassFolders.Config(path=str(pictures), size=size)).arrays()
    config = Shards.Config(path=str(tmp_path / "out"), size=size, stream=stream)
    read = Shards(config).arrays()
    assert isinstance(read.samples, StreamedSamples) == stream
    np.testing.assert_array_equal(read.samples[:], expected.samples)
    np.testing.assert_array_equal(read.labels, expected.labels)
    assert read.classes == expected.classes == ("a", "b")


def test_folders_can_be_streamed_without_shards(pictures):
    expected = ClassFolders(ClassFolders.Config(path=str(pictures), size=12)).arrays()
    streamed = ClassFolders(ClassFolders.Config(path=str(pictures), size=12, stream=True)).arrays()
    assert isinstance(streamed.samples, StreamedSamples)
    rows = np.array([31, 2, 2, 17])
    np.testing.assert_array_equal(streamed.samples[rows], expected.samples[rows])


def test_streaming_pictures_needs_a_size(pictures, tmp_path):
    with pytest.raises(DataError, match=r"data\.stream=true: .* set data\.size"):
        ClassFolders(ClassFolders.Config(path=str(pictures), stream=True)).arrays()
    imported(ClassFolders(ClassFolders.Config(path=str(pictures))), tmp_path / "out")
    with pytest.raises(DataError, match=r"differ in size; set data\.size"):
        Shards(Shards.Config(path=str(tmp_path / "out"))).arrays()


def test_clients_and_limits_are_those_of_the_folders(pictures, tmp_path):
    data = ClientFolders(ClientFolders.Config(path=str(pictures), size=8, limit=9))
    expected = data.arrays()
    imported(ClientFolders(ClientFolders.Config(path=str(pictures))), tmp_path / "out")
    keys = {"path": str(tmp_path / "out"), "size": 8, "limit": 9}
    read = Shards(Shards.Config(**keys)).arrays()
    np.testing.assert_array_equal(read.samples[:], expected.samples)
    np.testing.assert_array_equal(read.owners, expected.owners)
    assert read.owner_names == expected.owner_names
    assert (read.names[8], [*read.names[1:3]]) == (expected.names[8], [*expected.names[1:3]])


@pytest.mark.parametrize("shape", [(30, 5), (30, 9, 9), (30, 9, 9, 3)])
def test_arrays_keep_their_bits(tmp_path, shape):
    rng = np.random.default_rng(1)
    vectors = len(shape) == 2
    array = rng.normal(size=shape) if vectors else rng.integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "data.npz", samples=array, labels=np.arange(30) % 4)
    data = NPZ(NPZ.Config(path=str(tmp_path / "data.npz")))
    imported(data, tmp_path / "out", shard_bytes=400)
    mode = "L" if len(shape) == 3 else "RGB"
    read = Shards(Shards.Config(path=str(tmp_path / "out"), mode=mode)).arrays()
    expected = data.arrays()
    assert read.samples.dtype == expected.samples.dtype
    np.testing.assert_array_equal(read.samples[:], expected.samples)
    np.testing.assert_array_equal(read.labels, expected.labels)


def test_a_test_set_gets_a_folder_of_its_own(pictures, tmp_path):
    for half in ("train", "test"):
        (tmp_path / "both" / half).mkdir(parents=True)
        for name in "ab":
            (tmp_path / "both" / half / name).symlink_to(pictures / name)
    data = ClassFolders(ClassFolders.Config(path=str(tmp_path / "both")))
    assert imported(data, tmp_path / "out").keys() == {"train", "test"}
    read = Shards(Shards.Config(path=str(tmp_path / "out"), size=8)).arrays()
    assert read.test_samples is not None
    np.testing.assert_array_equal(read.test_samples[:], read.samples[:])


def test_test_shards_of_other_classes_are_refused(pictures, tmp_path):
    for half, names in (("train", "ab"), ("test", "b")):
        for name in names:
            (tmp_path / half / name).parent.mkdir(exist_ok=True)
            (tmp_path / half / name).symlink_to(pictures / name)
        data = ClassFolders(ClassFolders.Config(path=str(tmp_path / half)))
        imported(data, tmp_path / "out" / half)
    with pytest.raises(DataError, match="other classes than its training shards; import both"):
        Shards(Shards.Config(path=str(tmp_path / "out"), size=8)).arrays()


def test_samples_travel_to_other_processes_as_a_path(pictures, tmp_path):
    imported(ClassFolders(ClassFolders.Config(path=str(pictures))), tmp_path / "out")
    samples = Shards(Shards.Config(path=str(tmp_path / "out"), size=8)).arrays().samples
    first = samples[:3]
    content = cloudpickle.dumps(samples)
    assert len(content) < 20_000
    np.testing.assert_array_equal(cloudpickle.loads(content)[:3], first)


def spoil(folder):
    for name, content in (("a/98.png", b"no picture"), ("b/99.jpg", b"")):
        (folder / name).write_bytes(content)


def test_all_bad_pictures_are_named_at_once_and_nothing_is_left(pictures, tmp_path):
    spoil(pictures)
    with pytest.raises(DataError, match="2 of 42 pictures cannot be read") as caught:
        imported(ClassFolders(ClassFolders.Config(path=str(pictures))), tmp_path / "out")
    assert "98.png" in str(caught.value)
    assert "99.jpg" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_where_no_picture_can_be_read_nothing_is_imported(tmp_path):
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    (tmp_path / "pictures" / "a" / "1.png").write_bytes(b"no picture")
    data = ClassFolders(ClassFolders.Config(path=str(tmp_path / "pictures"), on_error="skip"))
    with pytest.raises(DataError, match=r"1\.png is not a readable picture"):
        imported(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_pictures_are_left_out_and_listed(pictures, tmp_path, capsys):
    spoil(pictures)
    out = tmp_path / "out"
    command = ["data=class_folders", f"data.path={pictures}", f"out={out}"]
    command.append("data.on_error=skip")
    assert main(command) == 0
    assert "train: 40 samples (3 sizes), 2 left out" in capsys.readouterr().out
    assert (out / "skipped.csv").read_text().splitlines() == [
        "file,reason",
        f"{pictures}/a/98.png,is not a readable picture",
        f"{pictures}/b/99.jpg,is empty (0 bytes)",
    ]
    assert len(Shards(Shards.Config(path=str(out), size=8)).arrays().samples) == 40


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["out=x"], "data: none is chosen"),
        (["data=class_folders", "data.path=p", "data.size=8", "out=x"], "data.size: shards hold"),
        (["data=class_folders", "data.path=nowhere", "out=x"], "nowhere: there is no such folder"),
        (["data=class_folders", "out=x"], "data.path"),
        (["data=class_folders", "data.path=p", "shard_mb=0", "out=x"], "shard_mb=0"),
        (["data=digit", "out=x"], "did you mean digits?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    arguments, sentence, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(pictures, tmp_path):
    with pytest.raises(DataError, match="it is not empty"):
        imported(ClassFolders(ClassFolders.Config(path=str(pictures))), pictures)


def damage_index(folder, **changes):
    values = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**values, **changes}))


DAMAGES = {
    "no JSON": lambda folder: (folder / INDEX).write_text("{"),
    "a list": lambda folder: (folder / INDEX).write_text("[]"),
    "another format": lambda folder: damage_index(folder, format=2),
    "a path": lambda folder: damage_index(
        folder, shards=[{"file": "../x", "rows": 1, "digest": "0"}]
    ),
    "other rows": lambda folder: damage_index(
        folder, shards=[{"file": "shard-00000.arrow", "rows": 7, "digest": "0"}]
    ),
    "no shard": lambda folder: (folder / "shard-00000.arrow").unlink(),
    "half a shard": lambda folder: (folder / "shard-00000.arrow").write_bytes(
        (folder / "shard-00000.arrow").read_bytes()[:900]
    ),
    "vectors": lambda folder: damage_index(folder, kind="vectors", shape=[4]),
    "fewer classes": lambda folder: damage_index(folder, classes=["a"]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_shards_are_refused_in_one_sentence(tmp_path, damage):
    images = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", samples=images, labels=np.arange(40) % 4)
    imported(NPZ(NPZ.Config(path=str(tmp_path / "data.npz"))), tmp_path / "out", shard_bytes=10**6)
    damage(tmp_path / "out")
    with pytest.raises(DataError, match="import the data again") as caught:
        Shards(Shards.Config(path=str(tmp_path / "out"), mode="L")).arrays()
    assert "\n" not in str(caught.value)


def test_a_folder_without_an_index_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match="make shards with coterie import_data"):
        ShardFiles.open(tmp_path)


@pytest.mark.parametrize("how", ["cut", "emptied", "written into"])
@pytest.mark.parametrize("kind", ["pictures", "vectors"])
def test_a_shard_that_changes_while_it_is_mapped_is_refused(pictures, tmp_path, kind, how):
    """A file that was cut short would end the process; what is written into it counts as data."""
    data = ClassFolders(ClassFolders.Config(path=str(pictures)))
    if kind == "vectors":
        np.save(tmp_path / "data.npy", np.zeros((40, 6), np.float32))
        data = NPZ(NPZ.Config(path=str(tmp_path / "data.npy")))
    imported(data, tmp_path / "out", shard_bytes=10**6)
    files, rows = ShardFiles.open(tmp_path / "out"), np.arange(40)
    read = files.pictures if kind == "pictures" else files.vectors
    read(rows)
    shard = tmp_path / "out" / "shard-00000.arrow"
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        if how == "written into":
            file.seek(size // 2)
            file.write(b"other")
        else:
            file.truncate(0 if how == "emptied" else size // 3)
    with pytest.raises(DataError) as caught:
        read(rows)
    assert str(caught.value) == (
        f"{shard}: it was changed while it was read; put it back as it was, or import the data "
        "again, and start again."
    )


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_shard_that_goes_stays_for_whoever_has_mapped_it(pictures, tmp_path, how):
    imported(ClassFolders(ClassFolders.Config(path=str(pictures))), tmp_path / "out")
    files, rows = ShardFiles.open(tmp_path / "out"), np.arange(40)
    before = files.pictures(rows)
    shard = tmp_path / "out" / "shard-00000.arrow"
    shard.unlink()
    if how == "replaced":
        shard.write_bytes(b"another")
    assert files.pictures(rows) == before
