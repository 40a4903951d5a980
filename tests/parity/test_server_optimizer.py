"""The server's optimisers against torch's SGD, the paper's algorithm line by line, and by hand."""

import math

import pytest
import torch

from coterie.aggregation.server_optimizer import ServerOptimizer
from coterie.aggregation.stage import PhaseRun
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import Phase, WeightedUpdate

ROUNDS = 6


def server_step(slots, means, moments, config, untrained=()):
    """The means after a step of the server's optimiser, and its new state."""
    phase = Phase(name="p", stage="s", round=1, untrained=dict(untrained))
    run = PhaseRun(phase=phase, sizes={}, offered={}, server=slots, layouts={})
    return ServerOptimizer(config).step(run, means, moments)


def means(dtype, seed=0):
    """What the clients send, round by round: a slot with a matrix and a scalar."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "b": ()}
    return [
        {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
        for _ in range(ROUNDS + 1)
    ]


def walk(config, dtype=torch.float64):
    """The slot's values after each round, and the optimiser's state at the end."""
    start, *sent = means(dtype)
    values, moments = [start], {}
    for mean in sent:
        given = {"s": WeightedUpdate(weight=3, tensors=mean)}
        stepped, moments = server_step({"s": values[-1]}, given, moments, config)
        assert stepped["s"].weight == 3
        values.append(stepped["s"].tensors)
    return values, moments


def test_momentum_is_torchs_sgd_on_the_pseudo_gradient():
    config = AggregationConfig(optimizer="momentum", learning_rate=0.3, momentum=0.7)
    values, _ = walk(config)
    start, *sent = means(torch.float64)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    sgd = torch.optim.SGD(parameters.values(), lr=0.3, momentum=0.7)
    for mean, found in zip(sent, values[1:], strict=True):
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - mean[name]
        sgd.step()
        for name, parameter in parameters.items():
            torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-13, atol=1e-15)


def sign(number):
    return (number > 0) - (number < 0)


SECOND_MOMENTS = {
    "adam": lambda v, d, beta: beta * v + (1 - beta) * d**2,
    "yogi": lambda v, d, beta: v - (1 - beta) * d**2 * sign(v - d**2),
    "adagrad": lambda v, d, beta: v + d**2,
}


def slow_algorithm_2(start, sent, lr, beta_1, beta_2, tau, second):
    """Algorithm 2 of Reddi et al., coordinate by coordinate in Python."""
    x, m, v = list(start), [0.0] * len(start), [tau**2] * len(start)
    for mean in sent:
        for i, value in enumerate(mean):
            delta = value - x[i]
            m[i] = beta_1 * m[i] + (1 - beta_1) * delta
            v[i] = second(v[i], delta, beta_2)
            x[i] = x[i] + lr * m[i] / (math.sqrt(v[i]) + tau)
    return x, m, v


@pytest.mark.parametrize("optimizer", SECOND_MOMENTS)
def test_an_adaptive_optimiser_is_the_papers_algorithm_2(optimizer):
    config = AggregationConfig(optimizer=optimizer, learning_rate=0.05, beta_1=0.8, beta_2=0.95)
    values, moments = walk(config)
    start, *sent = means(torch.float64)
    for name in start:
        first, *others = (mean[name].flatten().tolist() for mean in (start, *sent))
        slow = slow_algorithm_2(first, others, 0.05, 0.8, 0.95, 1e-3, SECOND_MOMENTS[optimizer])
        found = (values[-1][name], moments["s"][f"m/{name}"], moments["s"][f"v/{name}"])
        for ours, theirs in zip(found, slow, strict=True):
            assert ours.flatten().tolist() == pytest.approx(theirs, rel=1e-12)


def test_adams_first_step_in_closed_form():
    config = AggregationConfig(optimizer="adam")
    slots = {"s": {"w": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)}}
    delta = torch.tensor([0.3, -1e-5, 0.0], dtype=torch.float64)
    given = {"s": WeightedUpdate(weight=1, tensors={"w": slots["s"]["w"] + delta})}
    stepped, _ = server_step(slots, given, {}, config)
    root = torch.sqrt(0.99 * 1e-6 + 0.01 * delta**2)
    expected = slots["s"]["w"] + 0.01 * 0.1 * delta / (root + 1e-3)
    torch.testing.assert_close(stepped["s"].tensors["w"], expected, rtol=1e-12, atol=0)
    assert stepped["s"].tensors["w"][2] == 0.5  # where nobody moved, nothing moves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_momentum_with_rate_1_and_no_memory_is_plain_averaging(dtype):
    config = AggregationConfig(optimizer="momentum", learning_rate=1.0, momentum=0.0)
    for found, mean in zip(walk(config, dtype)[0][1:], means(dtype)[1:], strict=True):
        for name in mean:
            if dtype == torch.float32:
                assert torch.equal(found[name], mean[name])  # to the bit
            else:
                torch.testing.assert_close(found[name], mean[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("optimizer", ["momentum", *SECOND_MOMENTS])
def test_running_statistics_are_averaged_and_never_stepped(optimizer):
    before = {"bn.running_mean": torch.ones(2), "bn.running_var": torch.full((2,), 4.0)}
    mean = {"bn.running_mean": torch.zeros(2), "bn.running_var": torch.full((2,), 0.01)}
    config = AggregationConfig(optimizer=optimizer, learning_rate=5.0)
    moments = {}
    for _ in range(3):
        slots = {"s": {**before, "w": torch.ones(2)}}
        given = {"s": WeightedUpdate(weight=1, tensors={**mean, "w": torch.zeros(2)})}
        stepped, moments = server_step(slots, given, moments, config)
        assert all(torch.equal(stepped["s"].tensors[name], mean[name]) for name in mean)
        assert not torch.equal(stepped["s"].tensors["w"], torch.zeros(2))
    assert set(moments["s"]) == ({"m/w"} if optimizer == "momentum" else {"m/w", "v/w"})


def test_what_nobody_trains_takes_the_mean_and_has_no_moments():
    config = AggregationConfig(optimizer="yogi")
    slots = {slot: {"w": torch.zeros(1), "queue": torch.zeros(1)} for slot in "ab"}
    sent = WeightedUpdate(weight=1, tensors={"w": torch.ones(1), "queue": torch.ones(1)})
    given, alone = {"a": sent, "b": sent}, {"a": {"queue"}}
    stepped, moments = server_step(slots, given, {}, config, alone)
    assert stepped["a"].tensors["queue"].item() == 1.0
    assert stepped["b"].tensors["queue"].item() < 1.0
    assert set(moments["a"]) == {"m/w", "v/w"}


def test_a_slot_that_nobody_sent_keeps_its_moments_and_inputs_stay():
    config = AggregationConfig(optimizer="adam")
    slots = {slot: {"w": torch.zeros(1)} for slot in "ab"}
    given = {"a": WeightedUpdate(weight=1, tensors={"w": torch.ones(1)})}
    kept = {"b": {"m/w": torch.tensor([5.0])}}
    stepped, moments = server_step(slots, given, kept, config)
    assert list(stepped) == ["a"]
    assert moments["b"]["m/w"].item() == 5.0
    assert set(moments["a"]) == {"m/w", "v/w"}
    again, _ = server_step(slots, given, moments, config)
    assert again["a"].tensors["w"] > stepped["a"].tensors["w"]
    assert kept == {"b": {"m/w": torch.tensor([5.0])}}


def test_the_step_size_is_the_optimisers_own_unless_it_is_given():
    sizes = [AggregationConfig(optimizer=name).step_size for name in ("momentum", *SECOND_MOMENTS)]
    assert sizes == [1.0, 0.01, 0.01, 0.01]
    assert AggregationConfig(optimizer="adam", learning_rate=0.2).step_size == 0.2
