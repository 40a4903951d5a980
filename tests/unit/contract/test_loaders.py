"""Loaders of a client's rows, with the arguments of the user's own loader."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from coterie.contract.loaders import LoaderSamples, Source, has_length, loader_of, split_held_out
from coterie.errors import DataError

ROWS = np.array([2, 3, 5, 8, 9])
DATA = TensorDataset(torch.arange(10))


def batches(loader, rows=ROWS, seed=1, **keys):
    found = loader_of(Source(loader=loader), rows, seed, **keys)
    return [batch[0].tolist() for batch in found]


def test_only_the_clients_rows_come_in_batches_of_the_users_size():
    assert batches(DataLoader(DATA, 2)) == [[2, 3], [5, 8], [9]]
    assert batches(DataLoader(DATA, 2, drop_last=True)) == [[2, 3], [5, 8]]


def test_a_shuffle_is_a_function_of_the_seed():
    loader = DataLoader(DATA, 5, shuffle=True)
    torch.rand(3)  # the global generator has no part in it
    one = batches(loader)
    assert one == batches(loader)
    assert sorted(one[0]) == ROWS.tolist()
    assert one != batches(loader, seed=2)


def test_the_collate_function_is_the_users():
    def collate(samples):
        return {"points": [int(s[0]) for s in samples]}

    found = loader_of(Source(loader=DataLoader(DATA, 3, collate_fn=collate)), ROWS, 0)
    assert next(iter(found)) == {"points": [2, 3, 5]}


def test_weights_are_those_of_the_clients_rows():
    weights = [1.0 if row == 5 else 0.0 for row in range(10)]
    sampler = WeightedRandomSampler(weights, 10)
    assert batches(DataLoader(DATA, 5, sampler=sampler)) == [[5] * 5]


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(9, -1, -1))

    def __len__(self):
        return 10


def test_any_other_sampler_gives_its_order_of_the_clients_rows():
    assert batches(DataLoader(DATA, 3, sampler=Backwards())) == [[9, 8, 5], [3, 2]]


class Pairs(BatchSampler):
    pass


def test_a_sampler_of_batches_gives_the_clients_part_of_each():
    sampler = Pairs(SequentialSampler(DATA), 4, drop_last=False)
    assert batches(DataLoader(DATA, batch_sampler=sampler)) == [[2, 3], [5], [8, 9]]


def test_an_evaluation_takes_all_rows_in_order():
    loader = DataLoader(DATA, 2, shuffle=True, drop_last=True)
    assert batches(loader, ordered=True) == [[2, 3], [5, 8], [9]]


def test_workers_draw_by_the_seed_too():
    class Noisy(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, row):
            return row, np.random.random(), torch.rand(())  # noqa: NPY002

    loader = DataLoader(Noisy(), 2, num_workers=2)
    one, other = (
        [torch.stack([b.double() for b in batch]) for batch in found]
        for found in (loader_of(Source(loader=loader), ROWS, 4) for _ in range(2))
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("size", "drop", "found"),
    [
        (2, False, [[2, 3], [5, 8, 9]]),
        (4, False, [[2, 3, 5, 8, 9]]),
        (2, True, [[2, 3], [5, 8]]),
        (3, False, [[2, 3, 5], [8, 9]]),
        (1, False, [[2], [3], [5], [8], [9]]),
        (5, False, [[2, 3, 5, 8, 9]]),
        (8, False, [[2, 3, 5, 8, 9]]),
    ],
)
def test_a_last_row_alone_joins_the_batch_before_it(size: int, drop: bool, found: list[list[int]]):
    source = Source(loader=DataLoader(DATA, size, drop_last=drop))
    joined = loader_of(source, ROWS, 0, joins_last=True)
    assert [batch[0].tolist() for batch in joined] == found
    assert len(joined) == len(found)


def test_a_sampler_without_rows_of_the_client_gives_no_batch():
    loader = DataLoader(DATA, 2, sampler=SubsetRandomSampler([0, 1]))
    assert batches(loader, joins_last=True) == []


def test_a_loader_without_a_batch_is_refused():
    with pytest.raises(DataError, match="5 samples, fewer than its loader's batch_size=8"):
        batches(DataLoader(DATA, 8, drop_last=True))


def test_rows_are_of_one_source():
    samples = LoaderSamples.of([Source(loader=DataLoader(DATA)) for _ in range(2)])
    assert samples.shape == (20, 1)
    source, rows = samples.place(np.array([11, 13]))
    assert source is samples.sources[1]
    assert rows.tolist() == [1, 3]
    with pytest.raises(DataError, match="rows of several data sets"):
        samples.place(np.array([9, 10]))


def test_samples_travel():
    samples = LoaderSamples.of([Source(loader=DataLoader(DATA, 2))])
    again = pickle.loads(pickle.dumps(samples))
    assert again[np.array([4, 1])].tolist() == [[4.0], [1.0]]
    assert [b[0].tolist() for b in loader_of(again.sources[0], ROWS, 0)] == [[2, 3], [5, 8], [9]]


def _open():
    return (Source(loader=DataLoader(DATA, 5)),)


def test_samples_that_can_be_opened_again_do_not_travel():
    samples = LoaderSamples.of(_open(), _open)
    content = pickle.dumps(samples)
    assert b"_open" in content
    assert len(content) < 300
    assert pickle.loads(content).shape == (10, 1)


@pytest.mark.parametrize(("share", "held"), [(0.0, 0), (0.01, 1), (0.4, 2), (0.99, 4)])
def test_what_is_held_out_is_a_share_but_never_all(share, held):
    own, out = split_held_out(ROWS, share, 3)
    assert len(out) == held
    assert sorted([*own, *out]) == ROWS.tolist()
    assert (np.diff(own) > 0).all()


def test_lengths():
    class Without:
        def __len__(self):
            raise TypeError

    assert has_length(DATA)
    assert not has_length(iter([]))
    assert not has_length(Without())
