"""Data objects of the user's as the engine sees them: rows, and classes to split them by."""

import lightning
import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from coterie.contract.data_checks import check_data
from coterie.datamodules.lightning_data import LightningData
from coterie.errors import ConfigError, DataError
from tests.builders.own_module import Data

POINTS, LABELS = torch.rand(6, 2), torch.tensor([2, 0, 2, 5, 0, 5])


def arrays(given, **keys):
    config = LightningData.Config(is_object=True, **keys)
    config.attach(given)
    return LightningData(config).arrays()


class Listing(Dataset):
    """As torchvision's data sets are, with any name of the list."""

    def __init__(self, name, values):
        setattr(self, name, values)

    def __len__(self):
        return 6

    def __getitem__(self, row):
        raise AssertionError("no sample is read")


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(POINTS, LABELS),
        Listing("targets", LABELS.tolist()),
        Listing("labels", LABELS.numpy()),
        Subset(TensorDataset(POINTS.repeat(2, 1), LABELS.repeat(2)), range(6, 12)),
        ConcatDataset([Listing("targets", [2, 0, 2, 5, 0, 5])]),
        DataLoader(TensorDataset(POINTS, LABELS), 2),
    ],
    ids=lambda data: type(data).__name__,
)
def test_classes_are_those_that_the_data_set_lists(data):
    found = arrays(data)
    check_data(found)
    assert found.labels.tolist() == [1, 0, 1, 2, 0, 2]
    assert found.classes == ("0", "2", "5")


@pytest.mark.parametrize(
    "sample",
    [lambda row: (row, int(LABELS[row])), lambda row: {"x": row, "label": LABELS[row]}],
    ids=["tuple", "mapping"],
)
def test_classes_are_read_if_asked_to(sample):
    class Plain(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, row):
            return sample(row)

    assert arrays(Plain()).labels is None
    assert arrays(Plain(), read_labels=True).labels.tolist() == [1, 0, 1, 2, 0, 2]


def test_numbers_to_predict_are_no_classes():
    assert arrays(TensorDataset(POINTS, torch.rand(6))).labels is None
    assert arrays(Listing("y", [[1, 2]] * 6)).labels is None


def test_a_data_module_has_its_loaders():
    (source,) = arrays(Data()).samples.sources
    assert len(source) == 48
    assert source.datamodule is not None
    assert len(source.validation.dataset) == len(source.test.dataset) == 16


def test_one_for_each_client_names_the_owners():
    found = arrays([TensorDataset(POINTS, LABELS), TensorDataset(POINTS[:3], LABELS[:3])])
    assert found.owners.tolist() == [0] * 6 + [1] * 3
    assert found.owner_names == ("client 0", "client 1")
    assert found.labels.tolist()[6:] == [1, 0, 1]


def test_a_loader_of_some_rows_has_these_only():
    loader = DataLoader(TensorDataset(POINTS, LABELS), 2, sampler=SubsetRandomSampler([1, 3]))
    found = arrays(loader)
    assert found.labels.tolist() == [0, 1]
    assert len(found.samples) == 2


def test_a_class_is_built_by_its_path():
    config = LightningData.Config(
        module="tests.builders.own_module:Data", arguments={"batch_size": 3}
    )
    found = LightningData(config).arrays()
    assert found.name == "Data"
    assert found.samples.sources[0].loader.batch_size == 3
    assert np.array_equal(np.unique(found.labels), [0, 1, 2])


@pytest.mark.parametrize(
    ("keys", "error", "sentence"),
    [
        ({"module": "tests.builders.own_module:Date"}, ConfigError, "did you mean"),
        (
            {"module": "tests.builders.own_module:Data", "arguments": {"hat": 1}},
            ConfigError,
            r"^data\.hat: .*:Data does not take it; .*batch_size",
        ),
        ({}, ConfigError, "no class is given"),
        ({"is_object": True}, ConfigError, "an object of a Python program"),
    ],
)
def test_a_class_that_is_not_there_is_refused(keys, error, sentence):
    with pytest.raises(error, match=sentence):
        LightningData(LightningData.Config(**keys)).arrays()


def test_what_is_no_data_is_refused():
    with pytest.raises(DataError, match="int has no rows"):
        arrays(7)


class Failing(lightning.LightningDataModule):
    def setup(self, stage):
        raise KeyError(stage)


class Without(lightning.LightningDataModule):
    """It has no loaders."""


@pytest.mark.parametrize("data", [Failing(), Without()], ids=["setup", "loader"])
def test_what_a_data_module_raises_is_a_sentence(data):
    with pytest.raises(DataError, match=f"^data: {type(data).__name__} could not be set up \\("):
        arrays(data)
