"""Data in an object store: a server on this machine that speaks S3."""

import io
import os

import cloudpickle
import numpy as np
import pytest
from PIL import Image

from coterie.datamodules.folders import ClassFolders
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.remote import CACHE_VARIABLE
from coterie.datamodules.shards import Shards
from coterie.errors import DataError
from coterie.jobs.import_data import main

server = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

BUCKET = "s3://pictures"


@pytest.fixture(scope="module")
def store():
    """An empty store, its address and keys in the environment."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    keys = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": host,
        "no_proxy": host,
    }
    before = dict(os.environ)
    os.environ.update(keys)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("pictures")
    yield files
    os.environ.clear()
    os.environ.update(before)
    s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.fixture(scope="module")
def pictures(store):
    """Twenty pictures of two classes in the store, and their pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 8, 3), dtype=np.uint8)
    rows = []
    for number, image in enumerate(pixels):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        name = f"{'ab'[number // 10]}/{number:02}.png"
        store.pipe(f"pictures/folders/{name}", file.getvalue())
        rows.append(f"{name},{name[0]}\n")
    store.pipe("pictures/folders/list.csv", b"path,kind\n" + "".join(rows).encode())
    return pixels.transpose(0, 3, 1, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def same(data, pixels):
    np.testing.assert_array_equal(data.samples[:], pixels)
    np.testing.assert_array_equal(data.labels, np.repeat([0, 1], 10))
    assert data.classes == ("a", "b")


@pytest.mark.parametrize("stream", [False, True])
def test_folders_and_manifests_are_read_where_they_lie(pictures, stream):
    keys = {"size": (6, 8), "stream": stream}
    same(ClassFolders(ClassFolders.Config(path=f"{BUCKET}/folders", **keys)).arrays(), pictures)
    keys |= {"label_column": "kind", "path": f"{BUCKET}/folders/list.csv"}
    same(Manifest(Manifest.Config(**keys)).arrays(), pictures)


def test_shards_are_imported_into_a_store_and_fetched_once(pictures, store, cache):
    out = f"{BUCKET}/shards"
    command = ["data=class_folders", f"data.path={BUCKET}/folders", f"out={out}"]
    assert main(command) == 0
    assert store.exists("pictures/shards/index.json")
    data = Shards(Shards.Config(path=out)).arrays()
    same(data, pictures)
    copies = sorted(cache.rglob("*.arrow"))
    assert [copy.name for copy in copies] == ["shard-00000.arrow"]
    written = copies[0].stat().st_mtime_ns
    travelled = cloudpickle.loads(cloudpickle.dumps(data.samples))
    np.testing.assert_array_equal(travelled[3:5], pictures[3:5])
    assert copies[0].stat().st_mtime_ns == written
    assert main(command) == 2  # the folder is not empty


def test_what_is_not_there_is_refused_in_one_sentence(store):
    for cls, url, sentence in (
        (Shards, f"{BUCKET}/nowhere", "there is no index.json"),
        (ClassFolders, f"{BUCKET}/nowhere", "there is no such folder"),
        (Manifest, f"{BUCKET}/nowhere.csv", "there is no such file"),
        (NPZ, f"{BUCKET}/x.npz", "arrays are read from this machine; fetch it"),
        (Shards, "gopher://x/y", "only URLs of object stores are opened"),
        (Manifest, "gs://x/y.csv", r"pip install 'coterie\[remote\]'"),
    ):
        with pytest.raises(DataError, match=sentence) as refusal:
            cls(cls.Config(path=url)).arrays()
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x.csv",
        "local:///etc/passwd",
        "simplecache::s3://pictures/folders/list.csv",
        "s3://pictures/folders/list.csv::http://127.0.0.1:9/x",
        "reference://x",
    ],
)
def test_other_urls_are_opened_by_nothing(url):
    with pytest.raises(DataError, match=r"only URLs of object stores are opened \(s3, gs, "):
        Manifest(Manifest.Config(path=url)).arrays()


def test_a_table_in_a_store_leads_to_no_url(store):
    store.pipe("pictures/evil/list.csv", b"path\nhttp://127.0.0.1:9/x.png\n")
    with pytest.raises(DataError, match="column path, names a URL; give paths beside it"):
        Manifest(Manifest.Config(path=f"{BUCKET}/evil/list.csv")).arrays()


def test_a_picture_that_is_missing_in_the_store_is_named(store, pictures):
    store.pipe("pictures/other/list.csv", b"path\ngone.png\n00.png\n")
    store.copy("pictures/folders/a/00.png", "pictures/other/00.png")
    config = Manifest.Config(path=f"{BUCKET}/other/list.csv")
    with pytest.raises(DataError, match=r"gone\.png: there is no such file; put it there"):
        Manifest(config).arrays()
