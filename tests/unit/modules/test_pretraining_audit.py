"""What leaves a client of FedSimCLR, FedBYOL and FedSimSiam: keys, numbers, bytes, and no more."""

import pytest

from modules.byol import FedBYOL
from modules.simclr import FedSimCLR
from modules.simsiam import FedSimSiam
from tests.small_federation import SIZES, Federated, federate, tiny_workload

SMALL = {"hidden": 7, "projection": 5, "batch_size": 8, "epochs": 1, "rounds": 2}
SCALAR = 8
NORM = 4 * 7  # weight, bias, mean, variance of the projector's BatchNorm
NUMBERS = {
    # Linear 64→8 without bias, BatchNorm, Linear 8→6.
    "encoder": 64 * 8 + 4 * 8 + (8 * 6 + 6),
    "projector": 6 * 7 + NORM + (7 * 5 + 5),
    "predictor": 5 * 3 + 4 * 3 + (3 * 5 + 5),
}
PLAIN = {**NUMBERS, "projector": 6 * 7 + 7 + (7 * 5 + 5)}  # SimCLR's has a bias and no BatchNorm
CASES = {
    "FedSimCLR": (FedSimCLR.Config(**SMALL), {k: PLAIN[k] for k in ("encoder", "projector")}),
    "FedSimSiam": (FedSimSiam.Config(**SMALL, bottleneck=3), NUMBERS),
    "FedBYOL": (FedBYOL.Config(**SMALL, bottleneck=3), NUMBERS),
    "FedBYOL, target averaged": (
        FedBYOL.Config(**SMALL, bottleneck=3, target_network="averaged"),
        {**NUMBERS, "target": NUMBERS["encoder"] + NUMBERS["projector"]},
    ),
}
PREFIXES = {
    "encoder": ("online.encoder.",),
    "projector": ("online.projector.",),
    "predictor": ("predictor.",),
    "target": ("target.encoder.", "target.projector."),
}


@pytest.fixture(scope="module", params=CASES)
def ran(request) -> tuple[Federated, dict[str, int]]:
    config, numbers = CASES[request.param]
    return federate(tiny_workload(config)), numbers


def test_only_the_declared_networks_cross(ran) -> None:
    federated, numbers = ran
    assert len(federated.spy.turns) == 2 * len(SIZES)
    for turn in federated.spy.turns:
        up = {slot: mean.tensors for slot, mean in turn.outcome.up.items()}
        for sent in (turn.slots, up):
            assert set(sent) == set(numbers)
            for slot, tensors in sent.items():
                assert all(name.startswith(PREFIXES[slot]) for name in tensors)
                assert sum(t.numel() for t in tensors.values()) == numbers[slot]
                assert not [name for name in tensors if "num_batches" in name]
        assert turn.outcome.records == {}
        assert turn.outcome.mail == {}
        assert set(turn.outcome.metrics) == {"loss"}
        assert turn.client.data.labels is None


def test_bytes_are_those_counted_by_hand(ran) -> None:
    federated, numbers = ran
    everyone = SCALAR * len(SIZES)
    for commit in federated.commits:
        assert commit.traffic.down == {slot: everyone * n for slot, n in numbers.items()}
        up = {slot: everyone * (n + 1) for slot, n in numbers.items()}
        assert commit.traffic.up == {**up, "metrics": everyone}
        assert commit.traffic.peer == {}
