"""How far a client's values and weight may go."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.exact import ExactMeans, Layout, max_weights
from coterie.aggregation.limits import Limits
from coterie.aggregation.stage import Contribution, PhaseRun, StageTask
from coterie.config.aggregation import AggregationConfig
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Outcome, Phase, WeightedUpdate
from coterie.errors import ContractError
from coterie.execution.messages import check_outcome
from coterie.modules.concord import Concord
from coterie.modules.fedavg import FedAvg
from tests.builders.loops import make_workload

PHASE = Phase(name="train", stage="s", round=1, up=frozenset({"encoder"}))


def limits(method=None, **config):
    return Limits(make_workload(method or FedAvg.Config(rounds=1), **config).config)


def phase_run(tensors, sizes):
    slots, layouts = {"encoder": tensors}, {"encoder": Layout.of(tensors)}
    return PhaseRun(phase=PHASE, sizes=sizes, offered=slots, server=slots, layouts=layouts)


def send(stage, run, mean, client=0):
    """Pass a client's contribution through the stage."""
    task = StageTask(
        phase=PHASE,
        client=client,
        samples=run.sizes[client],
        seed=0,
        received=run.offered,
        layouts=run.layouts,
        phase_data=stage.request(run),
        data=stage.tasks(run).get(client),
    )
    up = {"encoder": mean}
    return stage.contribute(Contribution(outcome=Outcome(up=up), up=up), task)


def test_a_weight_is_bounded_by_the_samples_that_the_engine_counts():
    run, ones = phase_run({"w": torch.zeros(3)}, {0: 4}), {"w": torch.ones(3)}
    send(limits(), run, WeightedUpdate(weight=4, tensors=ones))
    with pytest.raises(ContractError, match=r"'encoder' has weight 5, and this client's samples"):
        send(limits(), run, WeightedUpdate(weight=5, tensors=ones))
    for free in (
        {"aggregation": AggregationConfig(rule="equal")},
        {"privacy": PrivacyConfig(dp=DPConfig(clip=1.0, noise_multiplier=1.0))},
    ):
        send(limits(**free), run, WeightedUpdate(weight=5, tensors=ones))
    sizes = {0: 4, 1: 1, 2: 0}
    assert max_weights(sizes, PHASE) == {0: 4, 1: 1, 2: 1}
    assert max_weights(sizes, replace(PHASE, repeats=2.5, received=2)) == {0: 15, 1: 8, 2: 5}


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 2**26), min_size=1, max_size=6),
    st.lists(st.floats(0, 2.0**24, width=32), min_size=6, max_size=6),
    st.randoms(use_true_random=False),
)
def test_what_passes_fits_the_exact_sums_in_every_order(sizes, values, random):
    stage = limits(Concord.Config(clusters=2))  # without a limit on growth
    run = phase_run({"w": torch.zeros(1)}, dict(enumerate(sizes)))
    means, contributions = ExactMeans(dict(run.layouts)), []
    for client, limit in stage.tasks(run).items():
        mean = WeightedUpdate(
            weight=random.choice([1, limit]), tensors={"w": torch.tensor([values[client]])}
        )
        with suppress(ContractError):
            check_outcome(PHASE, Outcome(up={"encoder": mean}), run.layouts, None)
            send(stage, run, mean, client)
            contributions.append({"encoder": mean})
    random.shuffle(contributions)
    for contribution in contributions:
        means.add(0, contribution)  # raises a RunError if it does not fit


def test_values_far_above_the_servers_own_are_refused():
    server = {"w": torch.full((2, 3), -2.0), "b": torch.zeros(3), "n.running_var": torch.ones(3)}
    run, growth = phase_run(server, {0: 4}), 100.0

    def far(stage=None, **tensors):
        mean = WeightedUpdate(weight=1, tensors={**server, **tensors})
        check_outcome(PHASE, Outcome(up={"encoder": mean}), run.layouts, None)
        send(stage or limits(faults=FaultsConfig(max_growth=growth)), run, mean)

    far(b=torch.full((3,), 2 * growth), **{"n.running_var": torch.full((3,), 4 * growth**2)})
    beyond = torch.tensor([0.0, -2.01 * growth, 0.0])
    with pytest.raises(ContractError, match=r"'b' has a value of .*, and faults.max_growth"):
        far(b=beyond)
    with pytest.raises(ContractError, match=r"'n\.running_var' has a value below 0; send a var"):
        far(**{"n.running_var": torch.tensor([1.0, -0.1, 0.0])})
    with pytest.raises(ContractError, match=r"'n\.running_var' has a value of"):
        far(**{"n.running_var": torch.full((3,), 4.1 * growth**2)})
    far(limits(aggregation=AggregationConfig(rule="median")), b=beyond)
    far(limits(Concord.Config(clusters=2)), b=beyond)
