"""CC and Fed + CC: the loss's forms against loops, the entropy's sign, averaging, schedule."""

import pytest
import torch
from torch import Tensor

from coterie.contract import ServerState
from coterie.losses.entropy import cluster_entropy
from coterie.modules.cc import CC, PARTS, CCConfig, ContrastiveClustering, FedCC
from tests.builders import slow_losses
from tests.builders.federation import Federated, federate, slow_mean, tiny_task, tiny_workload
from tests.builders.modules import random_views as views

SHORT = {"projection": 5, "batch_size": 8, "epochs": 2, "rounds": 2}


def module(config: CCConfig) -> ContrastiveClustering:
    torch.manual_seed(0)
    return ContrastiveClustering(config, tiny_task())


def project(built: ContrastiveClustering, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], ...]:
    with torch.no_grad():
        hidden = [built.online.encoder(view) for view in batch]
        return [built.online.instance(h) for h in hidden], [built.online.cluster(h) for h in hidden]


def test_form_cc_code_is_symmetric_nt_xent_minus_both_entropies() -> None:
    built = module(CC.Config(instance_temperature=0.3, cluster_temperature=0.8))
    assert built.config.form == "cc_code"
    batch = views()
    z, c = project(built, batch)
    instance = slow_losses.nt_xent(*z, 0.3)
    cluster = slow_losses.nt_xent(c[0].T, c[1].T, 0.8)
    entropies = slow_losses.entropy(c[0]) + slow_losses.entropy(c[1])
    found = built.training_step(batch, 0)
    assert found["instance"].item() == pytest.approx(instance, rel=1e-12)
    assert found["cluster"].item() == pytest.approx(cluster, rel=1e-12)
    assert found["loss"].item() == pytest.approx(instance + cluster - entropies, rel=1e-12)


@pytest.mark.parametrize("include_positive", [False, True])
def test_form_paper_is_equation_2_with_the_entropies_subtracted(include_positive: bool) -> None:
    built = module(FedCC.Config(include_positive=include_positive))
    assert built.config.form == "paper"
    batch = views()
    z, c = project(built, batch)
    losses = slow_losses.contrast(*z, 0.5, include_positive)
    losses += slow_losses.contrast(c[0].T, c[1].T, 1.0, include_positive)
    entropies = slow_losses.entropy(c[0]) + slow_losses.entropy(c[1])
    found = built.training_step(batch, 0)["loss"].item()
    assert found == pytest.approx(0.5 * losses - entropies, rel=1e-12)


@pytest.mark.parametrize("form", ["paper", "cc_code"])
def test_a_step_raises_the_entropy(form: str) -> None:
    built = module(CC.Config(form=form))
    with torch.no_grad():
        built.online.cluster.layers[-1].bias.copy_(torch.tensor([3.0, 0.0, -1.0]))
    batch = views(16)
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1)

    def size_entropy() -> float:
        return cluster_entropy(project(built, batch)[1][0]).item()

    before = size_entropy()
    for _ in range(20):
        optimizer.zero_grad()
        built.training_step(batch, 0)["loss"].backward()
        optimizer.step()
    assert before < 0.5
    assert size_entropy() > before + 0.2


@pytest.mark.parametrize("form", ["paper", "cc_code"])
def test_every_parameter_is_trained(form: str) -> None:
    built = module(CC.Config(form=form))
    built.training_step(views(), 0)["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in built.parameters())
    stepped = sum(len(g["params"]) for g in built.configure_optimizers().param_groups)
    assert stepped == len(list(built.parameters()))


@pytest.fixture(scope="module", params=[CC, FedCC])
def ran(request: pytest.FixtureRequest) -> Federated:
    return federate(tiny_workload(request.param.Config(**SHORT)))


def test_the_server_averages_by_the_numbers_of_samples(ran: Federated) -> None:
    assert len(ran.spy.served) == 2
    for number, (_, phase, _, _, after) in enumerate(ran.spy.served, start=1):
        tasks = [task for task in ran.spy.tasks if task.phase.round == number]
        assert sorted(task.outcome.up["encoder"].weight for task in tasks) == [9, 13, 22]
        assert phase.up == set(PARTS)
        for slot in PARTS:
            expected = slow_mean([task.outcome.up[slot] for task in tasks])
            assert set(after.slots[slot]) == set(expected)
            for name, value in expected.items():
                found = after.slots[slot][name]
                torch.testing.assert_close(found, value, rtol=0, atol=1e-14)


def test_running_statistics_are_averaged_and_nothing_is_kept(ran: Federated) -> None:
    averaged = ran.state.server.slots["encoder"]
    assert "online.encoder.network.2.running_mean" in averaged
    assert not [name for slot in ran.state.server.slots.values() for name in slot if "num_" in name]
    assert ran.state.states == {}
    assert all(task.outcome.state is None for task in ran.spy.tasks)


def test_clients_start_each_round_from_the_global_model(ran: Federated) -> None:
    for number, (before, *_) in enumerate(ran.spy.served, start=1):
        for task in ran.spy.tasks:
            if task.phase.round == number:
                for slot in PARTS:
                    for name, value in before.slots[slot].items():
                        assert torch.equal(task.slots[slot][name], value)


def test_schedule() -> None:
    method = FedCC(FedCC.Config(**SHORT | {"rounds": 3}, participation=0.5), tiny_task())
    state, rounds = ServerState(slots={}), []
    while (phase := method.next(state)) is not None:
        assert phase == method.next(state)
        rounds.append((phase.stage, phase.round, phase.cohort))
        state = state.advance(phase, {})
    assert rounds == [("joint", 1, 0.5), ("joint", 2, 0.5), ("joint", 3, 0.5)]


def test_defaults_are_those_of_the_papers() -> None:
    cc, fed = CC.Config(), FedCC.Config()
    assert (cc.form, cc.batch_size, cc.rounds * cc.epochs) == ("cc_code", 256, 1000)
    assert (fed.form, fed.batch_size, fed.rounds, fed.epochs) == ("paper", 128, 100, 5)
    for config in (cc, fed):
        assert (config.instance_temperature, config.cluster_temperature) == (0.5, 1.0)
        assert (config.learning_rate, config.weight_decay) == (3e-4, 0.0)
        assert (config.projection, config.include_positive) == (128, False)
