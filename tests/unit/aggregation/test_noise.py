"""Noise on sums and what it spends: a phase that runs again spends nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant
from scipy.stats import norm

from coterie.aggregation.client_noise import ClientNoise
from coterie.aggregation.clipping import STEPS, Sensitivity
from coterie.aggregation.exact import ExactMeans, Layout
from coterie.aggregation.noise import Noise, NoiseLedger, Spent
from coterie.aggregation.noise_checks import sensitivity
from coterie.aggregation.stage import PhaseRun
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.contract.accounting import epsilon
from coterie.contract.phase import Phase, WeightedUpdate
from coterie.errors import ConfigError, ContractError, RunError
from coterie.modules.concord import Concord
from coterie.modules.fedavg import FedAvg
from coterie.modules.simsiam import FedSimSiam
from tests.builders.loops import make_workload

SLOTS = {"a": {"w": torch.full((2000,), 3.0)}, "b": {"w": torch.zeros(3, 2)}}
LAYOUTS = {slot: Layout.of(tensors) for slot, tensors in SLOTS.items()}
CONFIG = DPConfig(clip=2.0, noise_multiplier=1.5)
KEY = bytes(range(32))


def asked(clients=(0, 1, 2), round_=1, *, clips=True, slots=SLOTS, steps=2 * STEPS):
    return PhaseRun(
        phase=Phase(name="p", stage="s", round=round_, up=frozenset(slots)),
        sizes=dict.fromkeys(clients, 1),
        offered=slots,
        server=slots,
        layouts={slot: Layout.of(tensors) for slot, tensors in slots.items()},
        data={"noise": Sensitivity(steps, clips=clips)},
    )


def stage(config=CONFIG, key=KEY, *, epochs=1, **ledger):
    method = FedAvg.Config(rounds=1, epochs=epochs)
    whole = make_workload(method, privacy=PrivacyConfig(dp=config)).config
    return Noise(whole, NoiseLedger(key, **ledger))


def sums(value=0.25, slots=("a",)):
    found = ExactMeans(LAYOUTS)
    for slot in slots:
        tensors = {"w": torch.full(SLOTS[slot]["w"].shape, value, dtype=torch.float64)}
        found.add(0, {slot: WeightedUpdate(weight=1, tensors=tensors)})
    return found


def released(noise, run, sums_):
    return {slot: mean.tensors["w"] for slot, mean in noise.total(run, sums_).items()}


def test_no_two_tasks_have_noise_of_one_secret():
    phases = [
        replace(asked((0, 1, 11), round_).phase, step=step, epsilon=1.0)
        for round_ in (1, 2, 11)
        for step in (0, 1)
    ]
    tasks = [
        ClientNoise(NoiseLedger(key)).tasks(replace(asked((0, 1, 11)), phase=phase))
        for key in (KEY, bytes(32))
        for phase in phases
    ]
    assert len({secret for each in tasks for secret in each.values()}) == 2 * 6 * 3
    again = ClientNoise(NoiseLedger(KEY)).tasks(replace(asked((0, 1, 11)), phase=phases[0]))
    assert again == tasks[0]
    assert ClientNoise().tasks(asked()) == {}
    with pytest.raises(ValueError, match="compose with a NoiseLedger"):
        ClientNoise().tasks(replace(asked(), phase=phases[0]))


@pytest.mark.parametrize("releases", [1, 7, 300])
@pytest.mark.parametrize("noise", [0.05, 0.8, 30.0])
def test_epsilon_is_below_that_of_renyi_divergences(releases, noise):
    accountant = RDPAccountant()
    for _ in range(releases):
        accountant.step(noise_multiplier=noise, sample_rate=1.0)
    theirs = accountant.get_epsilon(1e-5)
    found = epsilon(releases, noise, 1e-5)
    assert found < theirs
    if 0.5 < theirs < 100:  # elsewhere its default orders are too few
        assert found > 0.88 * theirs


@pytest.mark.parametrize("releases", [1, 7, 300])
@pytest.mark.parametrize("noise", [0.5, 0.8, 30.0])
def test_epsilon_is_no_less_than_what_the_gaussian_needs(releases, noise):
    """Balle and Wang (ICML 2018), theorem 8: the least δ of a Gaussian mechanism at this ε."""
    mu, found = math.sqrt(releases) / noise, epsilon(releases, noise, 1e-5)
    least = norm.logsf(found / mu - mu / 2), found + norm.logsf(found / mu + mu / 2)
    assert 0.98e-5 < math.exp(least[0]) - math.exp(least[1]) <= 1e-5  # and not much more
    rho = mu**2 / 2
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5))  # Bun and Steinke (TCC 2016)


def test_nothing_released_costs_nothing():
    assert epsilon(0, 1.0, 1e-5) == 0.0
    assert stage(CONFIG, KEY).epsilon() == 0.0


def test_the_mean_is_the_slot_plus_the_noisy_sum_by_those_asked():
    found = released(stage(CONFIG, KEY), asked(), sums())
    assert {slot: value.shape for slot, value in found.items()} == {"a": (2000,), "b": (3, 2)}
    assert found["a"].dtype == torch.float32
    noise = (found["a"].double() - 3.0) * 3 - 0.25
    assert abs(noise.mean()) < 4 * 3.0 / math.sqrt(2000)
    assert abs(noise.std() / 3.0 - 1) < 0.07  # clip 2 by noise multiplier 1.5
    assert found["b"].abs().min() > 0  # nobody sent it, and nobody can tell


def test_running_statistics_of_which_nobody_sends_an_update_get_no_noise():
    slot = {"n.running_mean": torch.zeros(3), "n.running_var": torch.full((3,), 0.1)}
    slot |= {"n.weight": torch.ones(3), "w": torch.ones(2000)}
    layouts = {"a": Layout.of(slot)}
    found, own = ExactMeans(layouts), {n: torch.zeros_like(t).double() for n, t in slot.items()}
    found.add(0, {"a": WeightedUpdate(weight=1, tensors=own)})
    (noisy,) = stage(CONFIG, KEY).total(asked(slots={"a": slot}), found).values()
    for name in ("n.running_mean", "n.running_var"):
        assert torch.equal(noisy.tensors[name], slot[name])
    assert bool((noisy.tensors["n.weight"] != 1).all())
    noise = (noisy.tensors["w"].double() - 1) * 3
    assert abs(noise.std() / 3.0 - 1) < 0.07  # clip 2 by noise multiplier 1.5


@pytest.mark.parametrize("name", ["running_mean", "n.running_var", "num_batches_tracked"])
def test_sums_have_noise_whatever_their_names_are(name):
    slots = {"a": {name: torch.zeros(2000, dtype=torch.float64)}}
    run, found = asked(clips=False, slots=slots), ExactMeans({"a": Layout.of(slots["a"])})
    found.add(0, {"a": WeightedUpdate(weight=1, tensors=slots["a"])})
    (noisy,) = stage(CONFIG, KEY).total(run, found).values()
    assert abs(noisy.tensors[name].std() / 3.0 - 1) < 0.07


def test_sums_over_samples_come_as_they_are():
    slots = {"a": {"w": torch.zeros(2000, dtype=torch.float64)}}
    one = asked(clips=False, slots=slots)
    found = released(stage(CONFIG, KEY), one, sums(100.0))["a"]
    assert abs((found - 100.0).std() / 3.0 - 1) < 0.07
    assert torch.equal((found * STEPS).round(), found * STEPS)


def test_a_phase_that_runs_again_releases_the_same_and_spends_nothing():
    written = []
    privacy = stage(CONFIG, KEY, record=written.append)
    first = released(privacy, asked(), sums())
    assert torch.equal(first["a"], released(privacy, asked(), sums())["a"])
    resumed = stage(CONFIG, KEY, spent=[*written])
    assert torch.equal(first["a"], released(resumed, asked(), sums())["a"])
    assert len(written) == 1
    assert resumed.epsilon() == epsilon(1, 1.5, 1e-5)


def test_another_sum_of_the_same_phase_has_other_noise_and_is_paid_for():
    privacy = stage(CONFIG, KEY)
    first = released(privacy, asked(), sums(0.25))["a"]
    second = released(privacy, asked(), sums(0.25 + 2.0**-20))["a"]
    assert (first - second).abs().median() > 0.1
    assert privacy.epsilon() == epsilon(2, 1.5, 1e-5)


@pytest.mark.parametrize("other", [asked(round_=2), asked(clients=(0, 1, 2), steps=STEPS)])
def test_another_phase_has_other_noise(other):
    first = released(stage(CONFIG, KEY), asked(), sums())["a"]
    second = released(stage(CONFIG, KEY), other, sums())["a"]
    ratio = 1 if other.data["noise"].steps == 2 * STEPS else 2
    noise = (first.double() - 3) * 3 - 0.25, ((second.double() - 3) * 3 - 0.25) * ratio
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.1


def test_another_key_gives_other_noise():
    found = [released(stage(CONFIG, key), asked(), sums())["a"] for key in (KEY, bytes(32))]
    assert abs(np.corrcoef(*found)[0, 1]) < 0.1


def test_it_costs_what_the_client_asked_most_often_pays():
    privacy = stage(CONFIG, KEY)
    for round_, clients in enumerate([(0, 1), (1, 2), (3,), (1,)], start=1):
        privacy.total(asked(clients, round_), sums())
    place = [Phase(name="p", stage="s", round=round_) for round_ in (1, 2, 3, 4)]
    counts = [epsilon(count, 1.5, 1e-5) for count in (1, 2, 2, 3)]
    assert [privacy.epsilon(phase) for phase in place] == counts


def test_the_budget_pays_for_whole_phases_only_and_once():
    config = CONFIG.model_copy(update={"budget": epsilon(2, 1.5, 1e-5)})
    privacy, phases = stage(config, KEY), [asked(round_=r).phase for r in (1, 2, 3)]
    for round_ in (1, 2):
        assert privacy.affords(phases[round_ - 1], (0, 1))
        privacy.total(asked((0, 1), round_), sums())
    assert not privacy.affords(phases[2], (1, 4))
    assert privacy.affords(phases[2], (4, 5))  # others have spent nothing
    assert privacy.affords(phases[1], (0, 1))  # paid for
    assert privacy.affords(Phase(name="p", stage="s", round=3), (0, 1))  # sends nothing up
    with pytest.raises(RunError, match="Round 2 ran again with another sum, and"):
        privacy.total(asked((0, 1), 2), sums(0.5))
    assert privacy.count() == 2


def test_sums_between_the_steps_are_refused():
    slots = {"a": {"w": torch.zeros(2000, dtype=torch.float64)}}
    with pytest.raises(ContractError, match=r"multiples of 2\^-20"):
        stage().total(asked(clips=False, slots=slots), sums(2.0**-21))


def test_what_bounds_a_phase():
    up = frozenset({"a"})
    phase = Phase(name="p", stage="s", round=1, down=up, up=up, sensitivity=None)
    assert sensitivity(CONFIG, phase, FedAvg.Config) == Sensitivity(2 * STEPS, clips=True)
    bounded = Phase(name="p", stage="s", round=1, up=up, sensitivity=1.0000001)
    assert sensitivity(CONFIG, bounded, Concord.Config) == Sensitivity(STEPS + 1, clips=False)
    for wrong in (
        Phase(name="p", stage="s", round=1, down=up, up=up, gathered=frozenset({"r"})),
        Phase(name="p", stage="s", round=1, down=up, up=up, peer_messages=frozenset({"r"})),
        Phase(name="p", stage="s", round=1, up=up),
    ):
        with pytest.raises(
            ConfigError, match=r"privacy.dp.clip=2: clients send|privacy.dp.clip=2: what"
        ):
            sensitivity(CONFIG, wrong, FedAvg.Config)
    with pytest.raises(ConfigError, match="cannot be clipped"):
        sensitivity(CONFIG, phase, Concord.Config)


def test_a_released_sum_is_written_before_it_is_released():
    def refuse(spent: Spent):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        stage(CONFIG, KEY, record=refuse).total(asked(), sums())


SAMPLE = CONFIG.model_copy(update={"unit": "sample"})


def training(noise, phase, client):
    return noise.tasks(replace(asked((client,)), phase=phase))[client]


def test_the_noise_of_training_has_a_key_for_each_task():
    privacy = stage(SAMPLE, KEY, epochs=3)
    phases = [Phase(name="p", stage="s", round=r, step=s) for r, s in ((1, 0), (1, 1), (2, 0))]
    noises = [training(privacy, phase, client) for phase in phases for client in (0, 1)]
    assert {(n.clip, n.sigma, n.epochs) for n in noises} == {(2.0, 3 * STEPS // 2, 3)}
    assert len({n.key for n in noises}) == len(noises)
    assert training(privacy, phases[0], 0) == noises[0]
    assert training(stage(SAMPLE, bytes(32)), phases[0], 0).key != noises[0].key


def test_noise_of_training_is_for_training_alone():
    phase = Phase(name="p", stage="s", round=1)
    assert stage().tasks(replace(asked(), phase=phase)) == {}
    summed = Phase(name="p", stage="s", round=1, sensitivity=1.0)
    assert stage(SAMPLE).tasks(replace(asked(), phase=summed)) == {}


def test_models_trained_with_noise_are_released_as_they_are_and_paid_by_the_epoch():
    privacy = stage(SAMPLE, KEY, epochs=3)
    one = replace(asked(), data={})
    found = released(privacy, one, sums(0.1))
    assert found["a"].tolist() == pytest.approx([0.1] * 2000)
    assert torch.equal(found["a"], released(privacy, one, sums(0.1))["a"])
    assert privacy.epsilon() == epsilon(3, 1.5, 1e-5)
    released(privacy, one, sums(0.1 + 2.0**-50))  # another sum of the same phase
    assert privacy.epsilon() == epsilon(6, 1.5, 1e-5)


def test_where_samples_have_no_gradients_of_their_own_they_are_not_protected():
    up = frozenset({"a"})
    phase = Phase(name="p", stage="s", round=1, down=up, up=up)
    assert sensitivity(SAMPLE, phase, FedAvg.Config) is None
    bounded = Phase(name="p", stage="s", round=1, up=up, sensitivity=1.0)
    assert sensitivity(SAMPLE, bounded, Concord.Config) == Sensitivity(STEPS, clips=False)
    with pytest.raises(ConfigError, match=r"unit=sample: of the methods only fedavg"):
        sensitivity(SAMPLE, phase, FedSimSiam.Config)
