"""Compressed updates: unbiased levels, error feedback, bytes, and what is refused."""

import numpy as np
import pytest
import torch

from coterie.aggregation.compression import Compression, int8, topk
from coterie.aggregation.exact import Layout
from coterie.aggregation.stage import Contribution, StageTask, Start
from coterie.config.aggregation import AggregationConfig
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.contract.phase import Outcome, Phase, WeightedUpdate
from coterie.errors import ConfigError
from coterie.modules.concord import Concord
from coterie.modules.fedavg import FedAvg
from tests.builders.loops import make_workload

SERVER = {
    "encoder": {"w": torch.linspace(-1, 1, 200).reshape(20, 10), "n.running_var": torch.ones(4)},
    "head": {"b": torch.zeros(50, dtype=torch.float64)},
}
PHASE = Phase(name="p", stage="s", round=1, down=frozenset(SERVER), up=frozenset(SERVER))


def sent_through(kind, up, seed=1, state=None, received=SERVER, keep=0.1):
    stage = Compression(AggregationConfig(compression=kind, keep=keep))
    task = StageTask(
        phase=PHASE,
        client=0,
        samples=5,
        seed=seed,
        received=received,
        layouts={slot: Layout.of(tensors) for slot, tensors in SERVER.items()},
        state=state or {},
    )
    return stage.contribute(Contribution(outcome=Outcome(up=up), up=up), task)


def trained(seed=0, scale=0.1):
    """A client's contribution: the server's values and a random update."""
    draw = torch.Generator().manual_seed(seed)
    return {
        slot: WeightedUpdate(
            weight=5,
            tensors={
                name: value + scale * torch.randn(value.shape, generator=draw, dtype=value.dtype)
                for name, value in tensors.items()
            },
        )
        for slot, tensors in SERVER.items()
    }


def test_levels_are_those_of_a_slow_loop_and_unbiased():
    update = torch.tensor([0.5, -1.27, 0.004, 0.0, 1.0], dtype=torch.float64)
    found = int8(update, torch.Generator().manual_seed(3))
    chance = torch.rand(5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for value, got, up in zip(update.tolist(), found.tolist(), chance.tolist(), strict=True):
        level = int(np.floor(value / 0.01 + up))
        assert got == pytest.approx(max(-127, min(127, level)) * 0.01, abs=1e-12)
        assert abs(got - value) <= 0.01 + 1e-12
    draws = torch.stack([int8(update, torch.Generator().manual_seed(n)) for n in range(4000)])
    assert torch.allclose(draws.mean(dim=0), update, atol=4 * 0.005 / np.sqrt(4000))
    assert torch.equal(int8(torch.zeros(3), torch.Generator()), torch.zeros(3))


def test_int8_sends_a_byte_an_entry_and_leaves_statistics_alone():
    up = trained()
    sent = sent_through("int8", up)
    assert sent.bytes_up == {"encoder": 8 + 200 + 4 + 4 * 4, "head": 8 + 50 + 4}
    variances = sent.up["encoder"].tensors["n.running_var"]
    assert torch.equal(variances, up["encoder"].tensors["n.running_var"])
    for slot in SERVER:
        assert sent.up[slot].weight == 5
        for name, value in sent.up[slot].tensors.items():
            given = up[slot].tensors[name]
            step = (given - SERVER[slot][name]).abs().max() / 127
            assert value.dtype == given.dtype
            assert (value - given).abs().max() <= step * 1.001
    assert not sent.state
    again, other = sent_through("int8", up), sent_through("int8", up, seed=2)
    assert torch.equal(again.up["head"].tensors["b"], sent.up["head"].tensors["b"])
    assert not torch.equal(other.up["head"].tensors["b"], sent.up["head"].tensors["b"])


def test_topk_sends_the_largest_entries_of_all_slots_and_keeps_the_rest():
    updates = {
        "a": torch.tensor([3.0, -1.0, 0.5]).double(),
        "b": torch.tensor([-2.0, 0.1]).double(),
    }
    sent, rest = topk(updates, {}, keep=0.4)
    assert sent["a"].tolist() == [3.0, 0.0, 0.0]
    assert sent["b"].tolist() == [-2.0, 0.0]
    assert rest["a"].tolist() == [0.0, -1.0, 0.5]
    assert rest["b"].tolist() == pytest.approx([0.0, 0.1])
    second, _ = topk(updates, {key: value * 4 for key, value in rest.items()}, keep=0.2)
    assert second["a"].tolist() == [0.0, -5.0, 0.0]  # its own -1 and four times the rest


def test_topk_counts_indices_and_values_and_its_memory_goes_on():
    up = trained()
    sent = sent_through("topk", up)
    entries = {slot: mean.tensors for slot, mean in sent.up.items()}
    changed = {
        slot: int(sum((v != SERVER[slot][n]).sum() for n, v in tensors.items() if "run" not in n))
        for slot, tensors in entries.items()
    }
    assert sum(changed.values()) == 25
    assert sent.bytes_up["encoder"] == 8 + changed["encoder"] * (4 + 4) + 4 * 4
    assert sent.bytes_up["head"] == 8 + changed["head"] * (4 + 8)
    kept = sent.state["compression"]
    assert set(kept) == {"encoder/w", "head/b"}
    still = {slot: WeightedUpdate(weight=5, tensors=tensors) for slot, tensors in SERVER.items()}
    after = sent_through("topk", still, state=kept)
    moved = after.up["head"].tensors["b"]
    assert bool((moved != 0).any())  # an update of zero sends what was left


def test_a_slot_that_was_not_received_is_sent_as_it_is():
    up = trained()
    sent = sent_through("int8", up, received={"encoder": SERVER["encoder"]})
    assert sent.up["head"] == up["head"]
    assert set(sent.bytes_up) == {"encoder"}


@pytest.mark.parametrize(
    ("method", "privacy", "why"),
    [
        (
            FedAvg.Config(rounds=1),
            PrivacyConfig(secure_aggregation=True),
            "masks turn each number into 64",
        ),
        (
            FedAvg.Config(rounds=1),
            PrivacyConfig(dp=DPConfig(clip=1.0, noise_multiplier=1.0)),
            "may exceed privacy.dp.clip",
        ),
        (Concord.Config(clusters=2), PrivacyConfig(), "exact sums over samples, not updates"),
    ],
)
def test_it_is_refused_where_it_cannot_work(method, privacy, why):
    aggregation = AggregationConfig(compression="int8")
    config = make_workload(method, privacy=privacy, aggregation=aggregation).config
    start = Start(
        config=config,
        method=None,
        server=None,
        shape=(1,),
        sizes={},
        cohort=lambda phase: 1,
        clients=lambda phase: (0,),
    )
    with pytest.raises(ConfigError, match=f"aggregation.compression=int8: .*{why}"):
        Compression(aggregation).check(start)
