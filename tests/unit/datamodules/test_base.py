"""What all data sets share, shown on MNIST and the digits: splits, subsets, loaders, refusals."""

import gzip
import struct

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

from coterie.config.component import config_model
from coterie.datamodules.base import ROOT_VARIABLE
from coterie.datamodules.digits import Digits
from coterie.datamodules.idx import read_idx
from coterie.datamodules.mnist import MNIST, FashionMNIST
from coterie.errors import DataError

RNG_SEED = 5


def random_images(count, *shape):
    return np.random.default_rng(RNG_SEED).integers(0, 256, (count, *shape), np.uint8)


def write_idx(path, array, compress=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if compress else content)


@pytest.fixture
def mnist_root(tmp_path):
    images, labels = random_images(30, 28, 28), np.arange(30, dtype=np.uint8) % 10
    for number, stem in enumerate(("train", "t10k")):
        end = ".gz" if stem == "t10k" else ""
        count = 20 - 10 * number
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = tmp_path / "MNIST" / "raw" / f"{stem}-{name}-ubyte{end}"
            write_idx(path, array[20 * number :][:count], compress=bool(end))
    return tmp_path, images[:, None], labels.astype(np.int64)


def load(cls, root, **keys):
    return cls(cls.Config(root=str(root), **keys)).arrays()


def test_mnist_is_read_from_plain_and_gzipped_files(mnist_root):
    root, images, labels = mnist_root
    data = load(MNIST, root)
    np.testing.assert_array_equal(data.samples, images[:20])
    np.testing.assert_array_equal(data.labels, labels[:20])
    np.testing.assert_array_equal(data.test_samples, images[20:])
    np.testing.assert_array_equal(data.test_labels, labels[20:])
    assert (data.name, data.shape, len(data.classes)) == ("mnist", (1, 28, 28), 10)
    assert (data.samples.dtype, data.labels.dtype) == (np.uint8, np.int64)
    assert data.samples.flags.c_contiguous


def test_split_chooses_what_is_federated(mnist_root):
    root, images, labels = mnist_root
    merged, test = load(MNIST, root, split="all"), load(MNIST, root, split="test")
    np.testing.assert_array_equal(merged.samples, images)
    np.testing.assert_array_equal(merged.labels, labels)
    np.testing.assert_array_equal(test.samples, images[20:])
    assert merged.test_samples is merged.test_labels is test.test_samples is None


@pytest.mark.parametrize("limit", [1, 10, 25])
def test_limit_on_merged_halves_keeps_order_and_pairs(mnist_root, limit):
    root, images, labels = mnist_root
    data = load(MNIST, root, split="all", limit=limit)
    rows = [int(np.flatnonzero((images == one).all(axis=(1, 2, 3)))[0]) for one in data.samples]
    assert len(rows) == limit
    assert rows == sorted(set(rows))
    np.testing.assert_array_equal(data.labels, labels[rows])


def test_limits_are_stratified_and_seeded(mnist_root):
    root, _, _ = mnist_root
    data = load(MNIST, root, limit=10, limit_test=5)
    assert sorted(data.labels) == list(range(10))
    assert len(data.test_labels) == 5
    np.testing.assert_array_equal(data.samples, load(MNIST, root, limit=10).samples)
    assert len(load(MNIST, root, limit=1000).labels) == 20


def test_size_resizes_both_halves(mnist_root):
    data = load(MNIST, mnist_root[0], size=32)
    assert (data.shape, data.samples.dtype) == ((1, 32, 32), np.uint8)
    assert data.test_samples.shape == (10, 1, 32, 32)
    wanted = Image.fromarray(mnist_root[1][3, 0]).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(wanted, dtype=int) - data.samples[3, 0]).max() <= 1


def test_grey_images_for_an_encoder_of_colours_have_three_equal_channels(mnist_root):
    grey, rgb = (load(MNIST, mnist_root[0], rgb=rgb, size=14) for rgb in (False, True))
    for one, three in ((grey.samples, rgb.samples), (grey.test_samples, rgb.test_samples)):
        assert three.shape == (len(one), 3, 14, 14)
        np.testing.assert_array_equal(three, np.concatenate([one] * 3, axis=1))


def test_the_environment_names_the_root(mnist_root, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, str(mnist_root[0]))
    assert len(MNIST(MNIST.Config()).arrays().labels) == 20
    with pytest.raises(DataError, match="elsewhere"):
        load(MNIST, "/elsewhere")
    monkeypatch.delenv(ROOT_VARIABLE)
    with pytest.raises(DataError, match=r"data\.root or .* COTERIE_DATA"):
        MNIST(MNIST.Config()).arrays()


def test_loaders_give_every_sample_once(mnist_root):
    root, images, labels = mnist_root
    module = MNIST(MNIST.Config(root=str(root)), batch_size=8)
    torch.manual_seed(0)
    train = list(module.train_dataloader())
    assert [len(batch["labels"]) for batch in train] == [8, 8, 4]
    pixels, classes, places = (
        torch.cat([batch[name] for batch in train]) for name in ("samples", "labels", "positions")
    )
    np.testing.assert_array_equal(pixels.numpy(), images[places])
    assert (pixels.dtype, classes.dtype) == (torch.uint8, torch.int64)
    assert not np.array_equal(pixels.numpy(), images[:20])
    order = np.lexsort(pixels.flatten(1).numpy().T)
    wanted = np.lexsort(images[:20].reshape(20, -1).T)
    np.testing.assert_array_equal(pixels.numpy()[order], images[:20][wanted])
    np.testing.assert_array_equal(classes.numpy()[order], labels[:20][wanted])
    held_out = torch.cat([batch["samples"] for batch in module.test_dataloader()])
    np.testing.assert_array_equal(held_out, images[20:])
    assert len(list(MNIST(MNIST.Config(root=str(root)), batch_size=19).train_dataloader())) == 1
    merged = MNIST(MNIST.Config(root=str(root), split="all"))
    with pytest.raises(DataError, match="split=all holds nothing out"):
        merged.test_dataloader()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"<html>not found</html>", "not an IDX file"),
        (bytes([0, 0, 13, 1]) + struct.pack(">I", 0), "not an IDX file"),
        (bytes([0, 0, 8, 3]) + struct.pack(">I", 9), "8 bytes, which do not fit its header"),
        (bytes([0, 0, 8, 1]) + struct.pack(">I", 9) + b"12345678", "16 bytes, which do not fit"),
    ],
)
def test_corrupt_idx_files_are_named(tmp_path, content, message):
    path = tmp_path / "x-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"x-ubyte .*{message}"):
        read_idx(path)
    zipped = tmp_path / "y-ubyte.gz"
    zipped.write_bytes(gzip.compress(bytes(100))[:-9])
    with pytest.raises(DataError, match=r"y-ubyte\.gz cannot be read"):
        read_idx(zipped)
    zipped.write_bytes(gzip.compress(bytes(100))[:10] + b"\xff" * 20)  # a block of no known kind
    with pytest.raises(DataError, match=r"y-ubyte\.gz cannot be read \(Error -3"):
        read_idx(zipped)


def test_labels_that_do_not_fit_their_images_are_refused(mnist_root):
    path = mnist_root[0] / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    write_idx(path, np.zeros(19, np.uint8))
    with pytest.raises(DataError, match=r"\(20, 28, 28\) .* has \(19,\)"):
        load(MNIST, mnist_root[0])
    write_idx(path, np.full(20, 10, np.uint8))
    with pytest.raises(DataError, match="holds the label 10"):
        load(MNIST, mnist_root[0])


def test_missing_idx_files_say_what_where_and_how(tmp_path):
    with pytest.raises(DataError) as refusal:
        load(FashionMNIST, tmp_path)
    for part in (
        "train-images-idx3-ubyte",
        str(tmp_path / "FashionMNIST" / "raw"),
        "download=true",
    ):
        assert part in str(refusal.value)


def test_download_asks_torchvision_once_and_names_the_remedy(mnist_root, tmp_path, monkeypatch):
    calls = []

    def refuse(self):
        calls.append(self.root)
        raise RuntimeError("Error downloading x:\nno route to host")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", refuse)
    assert len(load(MNIST, mnist_root[0], download=True).labels) == 20
    assert calls == []
    with pytest.raises(DataError, match=r"no route to host.*by hand"):
        load(FashionMNIST, tmp_path / "empty", download=True)
    assert calls == [str(tmp_path / "empty")]


def test_digits_are_scikit_learns():
    source = load_digits()
    data = Digits(Digits.Config()).arrays()
    np.testing.assert_array_equal(data.labels, source.target)
    np.testing.assert_allclose(data.samples[:, 0] * (16 / 255), source.images, atol=0.5 * 16 / 255)
    assert (data.samples.max(), data.samples.shape) == (255, (1797, 1, 8, 8))


def test_digits_hold_out_a_fifth_of_each_class():
    whole, halves = Digits(Digits.Config()).arrays(), load(Digits, "/nowhere", split="train")
    sizes, held = np.bincount(whole.labels), np.bincount(halves.test_labels)
    assert np.abs(held - 0.2 * sizes).max() < 1
    assert (len(halves.labels), len(halves.test_labels)) == (1438, 359)
    rows = {image.tobytes() for image in halves.samples}
    assert not rows & {image.tobytes() for image in halves.test_samples}
    joined = np.concatenate([halves.samples, halves.test_samples]).reshape(1797, -1)
    sort = [np.lexsort(images.T) for images in (joined, whole.samples.reshape(1797, -1))]
    np.testing.assert_array_equal(joined[sort[0]], whole.samples.reshape(1797, -1)[sort[1]])


@pytest.mark.parametrize(
    "name", ["digits:Digits", "mnist:MNIST", "mnist:FashionMNIST", "cifar10:CIFAR10", "usps:USPS"]
)
def test_config_models_are_found_by_path(name):
    config = config_model(f"coterie.datamodules.{name}")(limit=7)
    assert config.limit == 7
