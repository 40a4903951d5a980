"""A resumed run of a user's module has the data and the hyperparameters it began with."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from coterie.contract.loader_content import arrays_of
from coterie.errors import ConfigError
from tests.builders.own_module import Lit, federated, tensors

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
    with pytest.raises(ConfigError, match=r"method\.arguments=.*0\.05.* this one has .*'lr': 0\.5"):
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
