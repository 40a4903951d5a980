"""Every kind of source gives the same samples: directly, streamed, and imported into shards."""

import io
import json
import os
import tarfile

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.config.component import config_model, load_target
from coterie.contract.samples import StreamedSamples
from coterie.datamodules.folders import ImageFolder
from coterie.datamodules.importing import import_data
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.shards import Shards
from coterie.datamodules.webdataset import WebDataset
from coterie.errors import DataError

COUNT = 30
LABELS = np.arange(COUNT) % 3
NAMES = ("cat", "dog", "eel")


@pytest.fixture(scope="module")
def pictures():
    """Encoded pictures and their pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 8, 3), dtype=np.uint8)
    content = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        content.append(file.getvalue())
    return content, pixels.transpose(0, 3, 1, 2)


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def write_tars(folder, content):
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as archive:
            for row in range(shard * 15, shard * 15 + 15):
                add(archive, f"x/{row:04}.cls", str(LABELS[row]).encode())
                add(archive, f"x/{row:04}.json", json.dumps({"row": row}).encode())
                add(archive, f"x/{row:04}.png", content[row])
    return folder


def write_saved(folder, content):
    """What `datasets.Dataset.save_to_disk` writes: Arrow streams, a state and features."""
    folder.mkdir()
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for part in range(2):
        rows = slice(part * 15, part * 15 + 15)
        cells = pa.array([{"bytes": one, "path": None} for one in content[rows]], kind)
        table = pa.table({"image": cells, "label": pa.array(LABELS[rows])})
        with pa.ipc.new_stream(str(folder / f"data-{part}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": f"data-{part}.arrow"} for part in range(2)]}
    (folder / "state.json").write_text(json.dumps(state))
    features = {"label": {"names": NAMES, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def write_parquet(path, content):
    table = pa.table({"image": content, "label": [NAMES[label] for label in LABELS]})
    pq.write_table(table, path, row_group_size=7)
    return path


def write_parquets(folder, content):
    folder.mkdir()
    table = pa.table({"image": content, "label": [NAMES[label] for label in LABELS]})
    for part in range(3):
        pq.write_table(table.slice(part * 10, 10), folder / f"{part}.parquet")
    return folder


COLUMNS = {"picture_column": "image", "label_column": "label"}
KINDS = {
    "tar": (WebDataset, write_tars, {}, ("0", "1", "2")),
    "saved": (Manifest, write_saved, COLUMNS, NAMES),
    "parquet": (Manifest, write_parquet, COLUMNS, NAMES),
    "parquets": (Manifest, write_parquets, COLUMNS, NAMES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_the_same_however_they_are_read(tmp_path, pictures, kind):
    cls, write, keys, classes = KINDS[kind]
    content, pixels = pictures
    path = write(tmp_path / f"source{'.parquet' if kind == 'parquet' else ''}", content)
    whole = cls(cls.Config(path=str(path), **keys))
    streamed = cls(cls.Config(path=str(path), size=(6, 8), stream=True, **keys)).arrays()
    import_data(whole, tmp_path / "out", shard_bytes=2000)
    shards = Shards(Shards.Config(path=str(tmp_path / "out"))).arrays()
    for found in (whole.arrays(), streamed, shards):
        np.testing.assert_array_equal(found.samples[:], pixels)
        np.testing.assert_array_equal(found.labels, LABELS)
        assert found.classes == classes
    assert isinstance(streamed.samples, StreamedSamples)
    travelled = cloudpickle.dumps(streamed.samples)
    assert len(travelled) < 40_000
    np.testing.assert_array_equal(cloudpickle.loads(travelled)[20:22], pixels[20:22])
    some = cls(cls.Config(path=str(path), limit=7, **keys)).arrays()
    assert len(some.samples) == 7


@pytest.mark.parametrize("skip", [False, True])
def test_a_picture_that_is_replaced_while_it_is_streamed_is_refused(tmp_path, skip):
    for number in range(4):
        Image.new("L", (6, 6), 10 + number).save(tmp_path / f"{number}.png")
    if skip:
        (tmp_path / "0.png").write_bytes(b"no picture")
    config = ImageFolder.Config(
        path=str(tmp_path), size=4, stream=True, on_error="skip" if skip else "refuse"
    )
    samples = ImageFolder(config).arrays().samples
    assert samples[:][-3:, 0, 0, 0].tolist() == [11, 12, 13]
    Image.new("L", (6, 6), 99).save(tmp_path / "2.png")
    assert samples[-1:][0, 0, 0, 0] == 13
    with pytest.raises(DataError, match=r"2\.png: it was replaced while the run read it; put it"):
        samples[:]
    Image.new("L", (6, 6), 12).save(tmp_path / "2.png")
    assert len(samples[:]) == 3 + (not skip)


VECTORS = np.random.default_rng(1).normal(size=(COUNT, 5)).astype(np.float32)


def vector_parquet(folder):
    lists = pa.array(VECTORS.tolist(), pa.list_(pa.float64()))
    pq.write_table(pa.table({"e": lists, "label": LABELS}), folder / "x.parquet", row_group_size=4)
    keys = {"picture_column": "e", "label_column": "label"}
    return Manifest(Manifest.Config(path=str(folder / "x.parquet"), **keys))


def vector_npz(folder, save=np.savez):
    save(folder / "x.npz", x=VECTORS.astype(np.float64), y=LABELS)
    return NPZ(NPZ.Config(path=str(folder / "x.npz")))


def vector_npy(folder):
    np.save(folder / "x.npy", VECTORS)
    return NPZ(NPZ.Config(path=str(folder / "x.npy")))


def compressed(folder):
    return vector_npz(folder, np.savez_compressed)


@pytest.mark.parametrize("make", [vector_parquet, vector_npz, compressed, vector_npy])
def test_vectors_are_the_same_however_they_are_read(tmp_path, make):
    data = make(tmp_path)
    import_data(data, tmp_path / "out", shard_bytes=200)
    shards = Shards(Shards.Config(path=str(tmp_path / "out"))).arrays()
    for found in (data.arrays(), shards):
        np.testing.assert_array_equal(found.samples[:], VECTORS)
        if make is not vector_npy:
            np.testing.assert_array_equal(found.labels, LABELS)
    assert len(list((tmp_path / "out").glob("*.arrow"))) > 2
    with pa.memory_map(str(tmp_path / "out" / "shard-00000.arrow")) as file:
        assert pa.types.is_fixed_size_list(pa.ipc.open_file(file).schema.field("sample").type)


def test_what_a_tar_file_may_hold(tmp_path, pictures):
    content, _ = pictures
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "a.cls", b"dog\n")
        add(archive, "a.seg.png", content[1])
        add(archive, "b.jpg", b"no picture")
        link = tarfile.TarInfo("c.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/dev/zero"
        archive.addfile(link)
        add(archive, "d.PNG", content[2])
    data = WebDataset(WebDataset.Config(path=str(path), on_error="skip")).arrays()
    assert len(data.samples) == 2
    assert data.labels.tolist() == [0, -1]
    assert [one.name for one in data.skipped] == [f"{path}, b.jpg"]


REFUSED = {
    "empty": (lambda path: path.write_bytes(b""), "hold no pictures|cannot be read as a tar"),
    "compressed": (lambda path: tarfile.open(path, "w:gz").close(), "cannot be read as a tar file"),
    "junk": (lambda path: path.write_bytes(b"x" * 2000), "cannot be read as a tar file"),
    "cut": (None, "cannot be read as a tar file|cannot be read"),
    "gone": (lambda path: None, "there are no tar files; give a .tar or a folder"),
    "pipe": (os.mkfifo, "there are no tar files"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_tar_files_are_refused_in_one_sentence(tmp_path, pictures, kind):
    spoil, sentence = REFUSED[kind]
    path = tmp_path / "x.tar"
    if spoil is None:
        write_tars(tmp_path / "t", pictures[0])
        path.write_bytes((tmp_path / "t" / "000.tar").read_bytes()[:3000])
    else:
        spoil(path)
    with pytest.raises(DataError, match=sentence) as refusal:
        WebDataset(WebDataset.Config(path=str(path))).arrays()
    assert "\n" not in str(refusal.value)


def test_a_saved_set_of_splits_names_them(tmp_path, pictures):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    write_saved(folder / "train", pictures[0])
    config = {"path": str(folder), **COLUMNS}
    with pytest.raises(DataError, match="it has the splits train, validation; name the folder"):
        Manifest(Manifest.Config(**config)).arrays()
    write_saved(folder / "test", pictures[0])
    data = Manifest(Manifest.Config(**config)).arrays()
    assert len(data.test_samples) == COUNT
    assert data.classes == NAMES


def test_the_yaml_files_name_what_there_is():
    target = "coterie.datamodules.webdataset:WebDataset"
    assert load_target(target) is WebDataset
    assert config_model(target) is WebDataset.Config


def test_vectors_of_two_widths_are_refused(tmp_path):
    pq.write_table(pa.table({"e": [[1.0, 2.0], [3.0]]}), tmp_path / "x.parquet")
    config = Manifest.Config(path=str(tmp_path / "x.parquet"), picture_column="e")
    with pytest.raises(DataError, match="2 numbers in row 0, but 1 in row 1; make them all one"):
        Manifest(config).arrays()


def write_vectors(path):
    table = pa.table({"embedding": [[1.0, 2.0]] * 3, "label": [0, 1, 0]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


STATE = '{"_data_files": [{"filename": "data.arrow"}]}'


@pytest.mark.parametrize(
    ("state", "info"),
    [
        ("[]", "{}"),
        ('{"_data_files": []}', "{}"),
        ('{"_data_files": ["x"]}', "{}"),
        ('{"_data_files": [{"filename": 5}]}', "{}"),
        ('{"_data_files": [{"filename": "../../data.arrow"}]}', "{}"),
        ('{"_data_files": [{"filename": "/etc/passwd"}]}', "{}"),
        ("[" * 100_000, "{}"),
        (STATE, "[]"),
        (STATE, '{"features": "x"}'),
        (STATE, "[" * 100_000),
    ],
)
def test_a_saved_data_set_of_other_content_is_refused_in_a_sentence(tmp_path, state, info):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    write_vectors(folder / "data.arrow")
    write_vectors(tmp_path / "data.arrow")
    (folder / "state.json").write_text(state)
    (folder / "dataset_info.json").write_text(info)
    keys = {"picture_column": "embedding", "label_column": "label"}
    with pytest.raises(DataError, match=r"^data\.path=.*[.]$") as refusal:
        Manifest(Manifest.Config(path=str(folder), **keys)).arrays()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("splits", ["[]", '{"splits": [1, 2]}'])
def test_splits_of_another_kind_are_refused_in_a_sentence(tmp_path, splits):
    (tmp_path / "dataset_dict.json").write_text(splits)
    with pytest.raises(DataError, match="is not as Hugging Face datasets writes it"):
        Manifest(Manifest.Config(path=str(tmp_path))).arrays()


@pytest.mark.parametrize("names", ["5", '[{"a": 1}, 2]', '"ab"'])
def test_names_of_classes_that_are_no_names_are_passed_over(tmp_path, names):
    write_vectors(tmp_path / "data.arrow")
    (tmp_path / "state.json").write_text(STATE)
    (tmp_path / "dataset_info.json").write_text(
        f'{{"features": {{"label": {{"names": {names}}}}}}}'
    )
    keys = {"picture_column": "embedding", "label_column": "label"}
    assert Manifest(Manifest.Config(path=str(tmp_path), **keys)).arrays().classes == ("0", "1")
