"""A model as large as the memory bears is summed with one copy of each contribution."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.aggregation.exact import FixedPointSum, Layout
from coterie.contract.phase import WeightedUpdate
from tests.builders.sums import means_of

ELEMENTS = 2**18
TENSORS = {"w": torch.full((2, ELEMENTS // 2), 0.25), "x": torch.ones(3)}


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {_memory(each) for each in tree_leaves((args, kwargs))}
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and _memory(each) not in given:
                self.bytes = max(self.bytes, each.nbytes)
        return made


def _memory(value):
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


def test_a_contribution_is_copied_once_also_when_the_sum_becomes_integers():
    sums = means_of(TENSORS)
    sums.add(0, {"s": WeightedUpdate(weight=1, tensors=TENSORS)})
    with Largest() as largest:
        sums.add(0, {"s": WeightedUpdate(weight=20_000, tensors=TENSORS)})
    assert sums.sums["s"].high.dtype == torch.int64
    assert largest.bytes == 4 * (ELEMENTS + 3)
    assert torch.equal(sums.result()["s"].tensors["w"], TENSORS["w"])


def test_sums_of_another_kind_are_merged_without_a_copy():
    sums = means_of(TENSORS)
    sums.add(0, {"s": WeightedUpdate(weight=20_000, tensors=TENSORS)})
    other = FixedPointSum(*torch.zeros(2, ELEMENTS + 3, dtype=torch.float64), weight=1)
    with Largest() as largest:
        sums.merge({"s": other})
    assert 0 < largest.bytes <= 8 * 2**16


def test_the_mean_takes_the_models_own_bytes():
    sums = means_of(TENSORS)
    sums.add(0, {"s": WeightedUpdate(weight=3, tensors=TENSORS)})
    with Largest() as largest:
        means = Layout.of(TENSORS).mean(sums.sums["s"])
    assert {mean.dtype for mean in means.values()} == {torch.float32}
    assert largest.bytes == TENSORS["w"].nbytes
