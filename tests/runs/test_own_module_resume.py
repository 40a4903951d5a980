"""A resumed run of a user's module has the data and the hyperparameters it began with."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from coterie.contract.loader_content import arrays_of
from coterie.errors import ConfigError
from tests.builders.own_module import Data, Lit, federated, tensors

POINTS, LABELS = tensors()


class Arrays(Dataset):
    """A data set as torchvision's are: arrays of its own."""

    def __init__(self, points):
        self.data, self.targets = points.numpy(), LABELS.tolist()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, row):
        return torch.from_numpy(self.data[row]), self.targets[row]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda points: TensorDataset(points, LABELS), id="tensors"),
        pytest.param(lambda points: Subset(Arrays(points), range(40)), id="subset of arrays"),
        pytest.param(lambda points: ConcatDataset([TensorDataset(points, LABELS)]), id="joined"),
    ],
)
def test_other_values_of_the_same_labels_are_refused(made, tmp_path):
    module = Lit()
    federated(tmp_path, module, made(POINTS), rounds=1)
    other = POINTS.clone()
    other[3, 1] += 1
    with pytest.raises(ConfigError, match="contents of the training samples differ"):
        federated(tmp_path, module, made(other), rounds=2, resume=True)
    again = federated(tmp_path, module, made(POINTS.clone()), rounds=2, resume=True)
    assert again.exit_code == 0


def test_another_learning_rate_of_the_module_is_refused(tmp_path):
    federated(tmp_path, Lit(lr=0.05), rounds=1)
    with pytest.raises(
        ConfigError,
        match=r"had module\.lr=0\.05, this one has module\.lr=0\.5",
    ):
        federated(tmp_path, Lit(lr=0.5), rounds=2, resume=True)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(()),
        torch.zeros(4, 4)[:, ::2],
        np.zeros((0, 3)),
        (np.float32(3), [np.ones(2)]),
    ],
)
def test_any_array_has_bytes(value):
    assert all(array.dtype.kind in "biufc" for array in arrays_of(value))


def test_an_array_keeps_its_rows_of_which_a_digest_reads_some():
    (found,) = arrays_of(TensorDataset(torch.zeros(5, 3, 2)))
    assert (found.shape, found.dtype) == ((5, 3, 2), np.float32)
    (halves,) = arrays_of(TensorDataset(torch.zeros(5, 3, dtype=torch.bfloat16)))
    assert halves.shape == (5, 6)


def plain(rate=0.1, drop=0.2):
    """A classifier with a value as a plain attribute, and one in a layer."""
    module = Lit()
    module.rate, module.layer = rate, torch.nn.Dropout(drop)
    return module


def with_rate(value):
    """A classifier with an attribute of the name of a hyperparameter."""
    module = Lit(lr=0.05)
    module.lr = value
    return module


def test_an_attribute_beside_a_hyperparameter_of_its_name_counts_too(tmp_path):
    federated(tmp_path, with_rate(0.05), rounds=1)
    with pytest.raises(ConfigError, match=r"this one has module\.self\.lr=5\.0"):
        federated(tmp_path, with_rate(5.0), rounds=2, resume=True)
    assert federated(tmp_path, with_rate(0.05), rounds=2, resume=True).exit_code == 0


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (plain(rate=0.3), r"module\.rate=0\.1, this one has .*\.rate=0\.3"),
        (
            plain(drop=0.5),
            r"module\.layers\.p=\[0\.2\], this one has .*=\[0\.5\]",
        ),
    ],
)
def test_another_attribute_of_the_module_or_a_layer_is_refused(other, told, tmp_path):
    federated(tmp_path, plain(), rounds=1)
    with pytest.raises(ConfigError, match=told):
        federated(tmp_path, other, rounds=2, resume=True)
    assert federated(tmp_path, plain(), rounds=2, resume=True).exit_code == 0


class Held(Data):
    """A data module whose validation points are moved."""

    def __init__(self, by=0.0):
        super().__init__()
        self.by = by

    def setup(self, stage):
        super().setup(stage)
        points, labels = self.held.tensors
        self.held = TensorDataset(points + self.by, labels)


def test_other_validation_data_is_refused_unless_accepted(tmp_path):
    module = Lit()
    federated(tmp_path, module, Held(), rounds=1)
    with pytest.raises(ConfigError, match="validation or test loader differ"):
        federated(tmp_path, module, Held(by=1.0), rounds=2, resume=True)
    accepted = ["accept_changed_data=true"]
    again = federated(tmp_path, module, Held(1.0), rounds=2, resume=True, overrides=accepted)
    assert again.exit_code == 0
