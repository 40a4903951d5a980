"""Data that a client received, and training that goes on from task to task."""

import numpy as np
import pytest
import torch

from coterie.contract import ClientData, Plan
from coterie.errors import ContractError
from coterie.execution.batches import SeededBatches
from coterie.execution.task_client import embed
from coterie.modules.cfcl_model import Local, TripletModel
from tests.builders.cfcl import ran as ran_with
from tests.builders.cfcl import short, tasks
from tests.builders.federation import SHAPE, tiny_task, tiny_workload


def own() -> ClientData:
    workload = tiny_workload(short())
    return ClientData(samples=workload.samples["train"], rows=workload.parts[0])


def foreign(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=generator)


def test_samples_received_come_behind_the_own_ones() -> None:
    data, others = own(), foreign(4)
    joined = data.joined(others)
    assert (len(data), len(joined)) == (13, 17)
    assert torch.equal(joined.take(), torch.cat([data.take(), others]))
    positions = np.array([16, 0, 13, 12, 13])
    wanted = torch.stack([others[3], data.take()[0], others[0], data.take()[12], others[0]])
    assert torch.equal(joined.take(positions), wanted)
    assert torch.equal(joined.joined(others[:1]).take()[13:], others[:1])
    assert joined.joined(others[:0]).received is None


def test_samples_received_are_embedded_and_batched_like_the_own_ones() -> None:
    joined = own().joined(foreign(4))
    net = torch.nn.Flatten()
    assert torch.equal(embed(net, joined, torch.device("cpu")), joined.take().flatten(1) / 255.0)
    half = embed(net, joined.take()[:9], torch.device("cpu"))
    assert torch.equal(half, joined.take()[:9].flatten(1) / 255.0)
    batches = SeededBatches(joined, Plan(batch_size=8, epochs=1), 1)
    seen = torch.cat([batch["samples"] for batch in batches])
    assert len(seen) == 16  # a last batch of one is skipped
    assert len({sample.numpy().tobytes() for sample in seen}) == 16


def test_labels_of_samples_received_are_nobodys() -> None:
    with pytest.raises(ContractError, match="hidden from unsupervised methods"):
        own().joined(foreign(1)).take_labels()


def test_batches_of_one_seed_are_the_same_however_the_steps_are_cut() -> None:
    data = own()

    def seeds(*cuts: tuple[int, int]) -> list[int]:
        plans = [Plan(batch_size=4, first_step=first, steps=steps) for first, steps in cuts]
        batches = [SeededBatches(data, plan, 9) for plan in plans]
        return [b["seed"] for part in batches for _ in range(part.epochs) for b in part]

    assert seeds((0, 9)) == seeds((0, 1), (1, 4), (5, 4))
    done = ran_with(exchange="none")
    trained = [task.client.seed for task in tasks(done, "train") if task.client.id == 0]
    assert len(set(trained)) == 3  # the tasks' own seeds do differ


def test_negatives_are_uniform_over_the_other_samples() -> None:
    module = TripletModel(short(), tiny_task())
    data = own().joined(foreign(2))
    module.begin(Local(data=data, step=1))
    rows = {sample.numpy().tobytes(): n for n, sample in enumerate(data.take())}
    counts = np.zeros((15, 15), dtype=int)
    for seed in range(400):
        positions = torch.arange(15)
        batch = {"samples": data.take(), "positions": positions, "seed": seed}
        negatives = module.on_before_batch_transfer(batch, 0)["negatives"]
        for anchor, negative in enumerate(negatives):
            counts[anchor, rows[negative.numpy().tobytes()]] += 1
    assert np.trace(counts) == 0
    others = counts[~np.eye(15, dtype=bool)]
    assert others.min() > 0
    # 210 cells of mean 400/14 = 28.6: χ² has mean 195 (15 rows of 13 degrees), std 20
    chi = ((others - 400 / 14) ** 2 / (400 / 14)).sum()
    assert chi < 195 + 5 * 20


def test_under_autocast_received_embeddings_keep_their_digits() -> None:
    module = TripletModel(short(exchange="implicit"), tiny_task(torch.float32))
    samples = [torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    received = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))

    def regulariser(embeddings: torch.Tensor) -> float:
        module.begin(Local(data=own(), step=1, received=embeddings, margin=30.0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module.training_step(tuple(samples), 0)["regulariser"].item()

    rounded = received.bfloat16().float()
    assert regulariser(received) != regulariser(rounded)
    assert regulariser(received) == pytest.approx(regulariser(rounded), rel=0.1)
