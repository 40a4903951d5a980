"""Batches: permutations, the same at each step wherever training began, and never too small."""

import math

import numpy as np
import pytest
import torch
from lightning import LightningModule

from coterie.contract.client import ClientData, Plan
from coterie.contract.seeds import derive_seed
from coterie.errors import ContractError
from coterie.execution.batches import SeededBatches
from coterie.execution.trainer import LightningTrainer


def data(size, labels=False):
    """Sample i of the client is i + 100, its class i % 3; the first 100 rows are others'."""
    return ClientData(
        samples=np.arange(100 + size, dtype=np.float32)[:, None],
        rows=np.arange(100, 100 + size),
        labels=np.arange(100 + size) % 3 if labels else None,
    )


def batches(size, seed=1, with_labels=False, **plan):
    given = data(size, with_labels)
    return SeededBatches(given, Plan(**plan), seed, with_labels=with_labels)


def epochs_of(given):
    return [list(given) for _ in range(given.epochs)]


def flat(given):
    return [batch for epoch in epochs_of(given) for batch in epoch]


def ids(batch):
    return [int(value) - 100 for value in batch["samples"][:, 0]]


@pytest.mark.parametrize(("size", "batch_size"), [(10, 5), (10, 4), (3, 8), (2, 2), (11, 3)])
def test_every_epoch_is_a_permutation_and_each_another(size, batch_size):
    epochs = [
        [i for batch in e for i in ids(batch)]
        for e in epochs_of(batches(size, batch_size=batch_size, epochs=6))
    ]
    assert len(epochs) == 6
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_a_batch_says_where_its_samples_lie_in_the_clients_data():
    for batch in flat(batches(11, batch_size=4, epochs=2)):
        assert batch["positions"].tolist() == ids(batch)
        assert batch["positions"].dtype == torch.int64


@pytest.mark.parametrize(
    ("size", "batch_size", "lengths"),
    [(9, 4, [4, 4]), (10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 8, [3]), (5, 2, [2, 2])],
)
def test_a_last_batch_of_one_sample_is_skipped(size, batch_size, lengths):
    given = batches(size, batch_size=batch_size, epochs=2)
    assert len(given) == len(lengths)
    assert [[len(ids(b)) for b in epoch] for epoch in epochs_of(given)] == [lengths, lengths]


def test_over_many_epochs_every_sample_is_trained_on_although_one_is_skipped():
    seen = {i for batch in flat(batches(9, batch_size=4, epochs=40)) for i in ids(batch)}
    assert seen == set(range(9))


@pytest.mark.parametrize("first", range(14))
def test_the_batch_at_a_step_is_the_same_wherever_training_began(first):
    whole = flat(batches(10, batch_size=4, steps=14))
    rest = flat(batches(10, batch_size=4, steps=14 - first, first_step=first))
    assert len(whole) == 14
    assert [ids(b) for b in rest] == [ids(b) for b in whole[first:]]
    assert [b["seed"] for b in rest] == [b["seed"] for b in whole[first:]]


def test_segments_of_cf_cl_are_one_uninterrupted_training():
    # Aggregation every 10 steps, a pull after 25: segments of 10, 10 and 5.
    whole = flat(batches(23, batch_size=4, steps=25))
    parts, first = [], 0
    for steps in (10, 10, 5):
        parts += flat(batches(23, batch_size=4, steps=steps, first_step=first))
        first += steps
    assert [ids(b) for b in parts] == [ids(b) for b in whole]


def test_epochs_are_the_same_as_their_number_of_steps():
    by_epoch = flat(batches(10, batch_size=4, epochs=3))
    by_step = flat(batches(10, batch_size=4, steps=9))
    assert [ids(b) for b in by_epoch] == [ids(b) for b in by_step]


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6, 7])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 5])
def test_epochs_says_how_often_to_iterate(steps, first):
    given = batches(10, batch_size=4, steps=steps, first_step=first)
    touched = {step // 3 for step in range(first, first + steps)}
    assert given.epochs == len(touched)
    assert sum(len(epoch) for epoch in epochs_of(given)) == steps
    assert list(given) == []


def test_another_seed_gives_another_order_and_other_augmentations():
    one, same, other = (flat(batches(30, seed=s, batch_size=5, epochs=1)) for s in (1, 1, 2))
    assert [ids(b) for b in one] == [ids(b) for b in same] != [ids(b) for b in other]
    seeds = [b["seed"] for b in one + other]
    assert len(set(seeds)) == 12


def test_labels_come_only_if_asked_for_and_fit_their_samples():
    unlabelled = flat(batches(6, batch_size=3, epochs=1))
    assert all(set(b) == {"samples", "positions", "seed"} for b in unlabelled)
    for batch in flat(batches(6, with_labels=True, batch_size=3, epochs=2)):
        assert batch["labels"].dtype == torch.int64
        assert batch["labels"].tolist() == [(i + 100) % 3 for i in ids(batch)]
    with pytest.raises(ContractError, match="hidden from unsupervised methods"):
        data(4).take_labels()


def test_a_batch_is_a_copy_that_may_be_written_to():
    given = data(4)
    given.take()[:] = 0
    assert given.take()[:, 0].tolist() == [100.0, 101.0, 102.0, 103.0]


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"batch_size": 4}, "give either epochs or steps"),
        ({"batch_size": 4, "epochs": 1, "steps": 1}, "give either epochs or steps"),
        ({"batch_size": 1, "epochs": 1}, "batch_size=1: batch norm and contrastive losses need 2"),
        ({"batch_size": 0, "epochs": 1}, "batch_size=0"),
        ({"batch_size": 4, "epochs": -1}, "cannot be negative"),
        ({"batch_size": 4, "steps": 1, "first_step": -1}, "cannot be negative"),
    ],
)
def test_an_impossible_plan_is_refused(plan, sentence):
    with pytest.raises(ContractError, match=sentence):
        Plan(**plan)


def test_a_client_of_one_sample_is_refused():
    with pytest.raises(ContractError, match="It has 1 of the two samples that a batch needs; part"):
        batches(1, batch_size=2, epochs=1)


class Counting(LightningModule):
    """Remembers which samples it was given in which epoch of the Trainer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def on_train_epoch_start(self):
        self.seen.append([])

    def training_step(self, batch, batch_idx):
        self.seen[-1].append(ids(batch))
        return self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "plan",
    [{"epochs": 3}, {"steps": 7}, {"steps": 7, "first_step": 2}, {"steps": 1, "first_step": 5}],
)
def test_lightning_trains_on_just_the_planned_batches(plan):
    expected = epochs_of(batches(10, batch_size=4, **plan))
    module = Counting()
    fit = LightningTrainer().fit(module, batches(10, batch_size=4, **plan), seed=0)
    assert module.seen == [[ids(batch) for batch in epoch] for epoch in expected]
    assert fit.steps == plan.get("steps", 9)
    assert math.ceil((plan.get("first_step", 0) % 3 + fit.steps) / 3) == len(module.seen)


@pytest.mark.parametrize("batch_size", [10, 255, 300])
@pytest.mark.parametrize("first_step", [0, 3])
def test_gathering_ahead_changes_no_batch(batch_size, first_step):
    given = batches(
        900, with_labels=True, batch_size=batch_size, steps=200, first_step=first_step
    )  # more samples than are gathered in one go, and batches larger than that
    per_epoch = math.ceil(900 / batch_size)
    for step, batch in enumerate(flat(given), first_step):
        epoch, index = divmod(step, per_epoch)
        order = np.random.default_rng(derive_seed(1, "order", epoch)).permutation(900)
        expected = order[index * batch_size : (index + 1) * batch_size]
        assert ids(batch) == expected.tolist()
        assert batch["labels"].tolist() == ((expected + 100) % 3).tolist()
        assert batch["seed"] == derive_seed(1, "step", step)
