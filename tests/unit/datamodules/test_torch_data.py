"""A user's torch data as arrays, for Coterie's own methods."""

import lightning
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from coterie import Federation, as_lightning, compose
from coterie.contract.data_checks import check_data
from coterie.datamodules import torch_data
from coterie.datamodules.torch_data import TorchData
from coterie.errors import ConfigError, DataError
from tests.builders.own_module import Data

HERE = "tests.unit.datamodules.test_torch_data"
GREY = (torch.arange(6 * 64).reshape(6, 8, 8) % 251).to(torch.uint8)
LABELS = [2, 0, 2, 5, 0, 5]


def opened(given, **keys):
    config = TorchData.Config(is_object=True, **keys)
    config.attach(given)
    return TorchData(config).arrays()


class Items(Dataset):
    """Samples as a function of their row."""

    def __init__(self, sample, count=6):
        self.sample, self.count = sample, count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return self.sample(row)


def picture(row, mode="L"):
    return Image.fromarray(GREY[row].numpy()).convert(mode)


@pytest.mark.parametrize(
    "sample",
    [
        lambda row: (GREY[row], LABELS[row]),
        lambda row: (GREY[row][None], torch.tensor(LABELS[row])),
        lambda row: [GREY[row].numpy(), np.int64(LABELS[row])],
        lambda row: (picture(row), LABELS[row]),
        lambda row: {"label": LABELS[row], "image": picture(row)},
        lambda row: {"id": f"n{row}", "x": GREY[row], "y": LABELS[row]},
        lambda row: {"id": torch.tensor(row), "x": GREY[row], "y": LABELS[row]},
        lambda row: (GREY[row].float() / 255, LABELS[row]),
        lambda row: (GREY[row][:, :, None].double() / 255, str(LABELS[row])),
    ],
)
def test_images_of_any_form_become_the_same_array(sample):
    found = opened(Items(sample))
    check_data(found)
    assert found.samples.dtype == np.uint8
    assert np.array_equal(found.samples, GREY[:, None].numpy())
    assert found.labels.tolist() == [1, 0, 1, 2, 0, 2]
    assert found.classes == ("0", "2", "5")


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA"])
def test_colours_are_three_channels(mode):
    found = opened(Items(lambda row: picture(row, mode)))
    assert found.samples.shape == (6, 3, 8, 8)
    assert found.labels is None
    if mode != "P":  # whose palette is the library's choice
        assert np.array_equal(found.samples[:, 1], GREY.numpy())


def test_vectors_are_taken_as_they_are():
    points = torch.randn(6, 5, dtype=torch.float64) * 1000
    found = opened(TensorDataset(points))
    assert np.array_equal(found.samples, points.float().numpy())


def test_lists_of_numbers_are_vectors():
    points = [[1, 2], [3, 4]]
    named = opened(Items(lambda row: {"label": row, "features": points[row]}, 2))
    plain = opened(Items(lambda row: points[row], 2))
    assert named.samples.tolist() == plain.samples.tolist()
    assert plain.labels is None
    assert named.samples.tolist() == points
    assert named.labels.tolist() == [0, 1]


def test_size_limit_and_split_are_those_of_any_data_set():
    found = opened(Items(lambda row: (GREY[row], LABELS[row])), size=4, limit=3)
    assert found.samples.shape == (3, 1, 4, 4)


def test_a_data_modules_test_loader_is_held_out():
    module = Data()
    found = opened(module)
    assert len(found.samples) == 48
    assert np.array_equal(found.test_samples, module.test_dataloader().dataset.tensors[0])
    assert found.test_labels is not None
    assert len(opened(module, split="all").samples) == 64


def test_one_for_each_client_names_the_owners():
    parts = [Items(lambda row: (GREY[row], LABELS[row])), Items(lambda row: (GREY[row], 7), 2)]
    found = opened(parts)
    assert found.owners.tolist() == [0] * 6 + [1] * 2
    assert found.classes == ("0", "2", "5", "7")
    assert found.labels.tolist() == [1, 0, 1, 2, 0, 2, 3, 3]


class Half(lightning.LightningDataModule):
    """A data module with an argument, whose test set has a class that the training set lacks."""

    def __init__(self, strange=5):
        super().__init__()
        self.strange = strange

    def train_dataloader(self):
        return DataLoader(Items(lambda row: (GREY[row], LABELS[row])), 2)

    def test_dataloader(self):
        return DataLoader(Items(lambda row: (GREY[row], self.strange), 2))


def test_classes_of_the_test_set_are_those_of_training():
    assert opened(Half()).test_labels.tolist() == [2, 2]
    with pytest.raises(DataError, match="labels of the test set holds 9, which no training"):
        opened(Half(9))


def fails(row):
    raise KeyError(f"row {row}")


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        (lambda row: torch.randn(3, 8, 8), r"sample 0 is an image of float32 in -.*Normalize"),
        (lambda row: GREY[row].long(), "sample 0 is an image of int64 in 0..63; give uint8"),
        (lambda row: GREY[row][: row + 1], r"sample 0 has shape \(1, 1, 8\) and sample 1 \(1, 2"),
        (lambda row: torch.rand(8), "sample 0 changes each time it is read; leave random"),
        (lambda row: torch.rand(3, 8, 8), "sample 0 changes each time"),
        (lambda row: "a cat", r"sample 0 is of type <U5 and shape \(\); give an image"),
        (lambda row: 3.0, "sample 0 is of type float64"),
        (lambda row: torch.zeros(2, 2, 2, 2), r"sample 0 .* shape \(2, 2, 2, 2\); give an image"),
        (lambda row: [], "sample 0 .*; give an image"),
        (fails, "sample 0 cannot be read .*row 0"),
    ],
)
def test_what_is_no_sample_is_refused(sample, sentence):
    with pytest.raises(DataError, match=f"^data=Items: {sentence}"):
        opened(Items(sample))


def test_samples_that_need_more_memory_are_refused(monkeypatch):
    monkeypatch.setattr(torch_data, "free_memory", lambda: 6 * 64 - 1)
    with pytest.raises(DataError, match=r"its 6 samples of shape \(1, 8, 8\) take 384 B"):
        opened(Items(lambda row: GREY[row]))


KMEANS = ("experiment=kmeans", "data=torch", "partition=iid", "partition.clients=2")


def test_a_class_is_named_with_its_arguments():
    config = compose(*KMEANS, f"data.target={HERE}:Half", "data.strange=2", "data.size=4")
    assert TorchData(config.data).arrays().test_labels.tolist() == [1, 1]
    assert config.data.size == 4


def test_a_run_takes_an_object(tmp_path):
    words = (*KMEANS, "method.iterations=3", "cluster=serial", "tracking.progress=none")
    config = compose(*words, f"run_dir={tmp_path / 'r'}")
    run = Federation(config, data=Data()).run()
    assert len(run.assignments) == 48
    with pytest.raises(ConfigError, match="it was an object of a Python program"):
        Federation(compose(f"run_dir={tmp_path / 'r'}", "resume=true"))


def test_an_object_goes_with_its_choice_of_data():
    with pytest.raises(ConfigError, match="data goes with"):
        Federation(compose("experiment=kmeans_digits"), data=Data())
    with pytest.raises(ConfigError, match="give a config, perhaps of compose"):
        Federation(compose(*KMEANS), data=Data(), rounds=3)


def test_a_plain_trainer_takes_it():
    words = ("experiment=fedbyol_digits", "data=torch", f"data.target={HERE}:Half")
    _, data = as_lightning(compose(*words))
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["samples"].shape == (6, 1, 8, 8)


def test_a_class_without_a_choice_of_data_is_told_of_it():
    with pytest.raises(ConfigError, match=f"give data=torch data.target={HERE}:Half, or for your"):
        compose("experiment=kmeans_digits", f"data.target={HERE}:Half")
