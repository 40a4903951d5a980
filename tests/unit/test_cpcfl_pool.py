"""CP-CFL's pool: heads, restarts, a model per client, what a client is evaluated with, refusals."""

import logging
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from coterie.contract import ServerState
from coterie.errors import ConfigError
from modules.classification import head
from modules.cpcfl import CPCFL, favourite, history, latest_choices, smallest_share
from tests.small_federation import SIZES, Federated, same_bits, tiny_task
from tests.small_pool import models, ran_with, short, short_ifca


@pytest.fixture(scope="module")
def ran() -> Federated:
    return ran_with(short())


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_heads_have_the_papers_depths(layers: int) -> None:
    widths = [40, *(256, 128, 64)[:layers], 10]
    built = head(40, 10, layers)
    found = [tuple(p.shape) for p in built.parameters() if p.ndim == 2]
    assert found == [(b, a) for a, b in pairwise(widths)]
    assert sum(isinstance(part, nn.ReLU) for part in built.modules()) == layers
    assert built(torch.zeros(2, 40)).shape == (2, 10)


def test_clients_are_evaluated_with_the_model_they_chose_last(ran: Federated) -> None:
    server, samples = ran.state.server, torch.from_numpy(ran.backend._worker.samples["train"])
    chosen = ran.spy.client_groups(server)[4]
    for client, n in enumerate(chosen):
        found = ran.spy.model_for(server, client).eval()
        wanted = models(server.slots, 2)[n]
        state = {k: v for k, v in found.state_dict().items() if "num_batches" not in k}
        named = {k.replace("head.0.", "classifier."): v for k, v in state.items()}
        assert same_bits(dict(sorted(named.items())), dict(sorted(wanted.items())))
        assert found(samples).probabilities.shape == (44, 3)
    best = favourite(chosen)
    everybody = ran.spy.model_for(server, None).eval()(samples).embedding
    for client in (chosen.index(best), 99):
        assert torch.equal(ran.spy.model_for(server, client).eval()(samples).embedding, everybody)
    assert [favourite([]), favourite([2, 1, 2, 1]), favourite([3])] == [0, 1, 3]


def test_a_failed_clustering_begins_again_with_other_models() -> None:
    # Three models for three clients, each to be chosen by one of them: rare by chance.
    config = short_ifca(clusters=3, rounds=2, min_share=0.33, restart_after=1, max_restarts=40)
    ran = ran_with(config)
    facts = ran.state.server.facts
    tries = facts["restarts"]
    assert tries > 0, "the first models did: take another seed"
    assert facts["began"] == tries
    assert ran.state.server.round == tries + 2
    history = ran.spy.client_groups(ran.state.server)
    assert all(len(set(history[round_])) < 3 for round_ in range(1, tries + 1))
    assert len(set(history[tries + 1])) == 3
    pools = [ran.start, *(after for *_, after in ran.spy.served[:tries])]
    drawn = [state.slots["head/0"]["classifier.weight"] for state in pools]
    assert len({tuple(weight.flatten().tolist()) for weight in drawn}) == tries + 1


def test_restarts_end_with_a_warning(caplog: Any) -> None:
    config = short_ifca(clusters=5, rounds=2, min_share=0.2, restart_after=1, max_restarts=2)
    with caplog.at_level(logging.WARNING):
        ran = ran_with(config)
    assert (ran.state.server.round, ran.state.server.facts["restarts"]) == (4, 2)
    assert "max_restarts=2 is used up; training goes on as it is" in caplog.text


def test_rounds_are_in_order_whatever_the_order_of_the_facts() -> None:
    choices = {"10": [1, -1], "9": [0, 2]}
    server = ServerState(slots={}, facts={"choices": choices})
    assert list(history(server).items()) == [(9, [0, 2]), (10, [1, -1])]
    assert latest_choices(server, after=0) == {0: 1, 1: 2}
    assert latest_choices(server, after=9) == {0: 1}


def test_shares_are_those_of_the_clients_that_took_part() -> None:
    assert smallest_share([0, 0, 1, 2], 3) == 0.25
    assert smallest_share([0, 0, 1], 3) == 0.0
    assert smallest_share([], 2) == 0.0


def test_a_model_for_each_client_is_training_alone() -> None:
    ran = ran_with(short(choice="client", clusters=3, explore_rounds=0, rounds=1))
    for turn in ran.spy.turns:
        n = turn.client.id
        assert set(turn.outcome.up) == {f"head/{n}", f"encoder/{n}"}
        for slot, mean in turn.outcome.up.items():
            torch.testing.assert_close(
                ran.state.server.slots[slot], dict(mean.tensors), rtol=0, atol=1e-13
            )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"choice": "client"}, "clusters=2: choice=client needs a model for each of the 3 clients"),
        ({"min_share": 0.6}, "min_share=0.6: 2 models cannot all have that share; choose 0.5 or"),
        ({"min_share": 0.1, "clusters": 11}, "11 models cannot all .* choose 0.09 or less"),
        ({"initial": "independent", "shared_encoder": True}, "initial=independent: models that"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CPCFL(short(**options), tiny_task()).init(dict(enumerate(SIZES)), 0)


def test_a_run_that_explores_to_its_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        CPCFL(short(rounds=3, explore_rounds=2), tiny_task()).init(dict(enumerate(SIZES)), 0)
        assert not caplog.records
        CPCFL(short(rounds=3, explore_rounds=3), tiny_task()).init(dict(enumerate(SIZES)), 0)
    assert "method.rounds=3: clients take models at random in the first 3" in caplog.text
