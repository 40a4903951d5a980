"""Restarts of a pool: when its shares are looked at, whose choices count, what is forgotten."""

from typing import Any

import torch

from coterie.config.aggregation import AggregationConfig
from coterie.config.participation import ParticipationConfig
from coterie.contract import ServerState
from modules.cpcfl import ABSENT, favourite, has_failed, is_due
from tests.builders.cpcfl import ran_with, short, short_ifca
from tests.builders.federation import Federated

PICKY = {"clusters": 3, "min_share": 0.33, "restart_after": 1, "rounds": 2}
"""Three models for three clients, each to be chosen by one of them: rare by chance."""


def tries(ran: Federated) -> int:
    found = ran.state.server.facts["restarts"]
    assert isinstance(found, int)
    return found


def there(*rounds: tuple[int, ...]) -> dict[str, Any]:
    return {"participation": ParticipationConfig(availability=rounds)}


def test_a_round_without_clients_puts_the_look_off() -> None:
    everybody = (0, 1, 2)
    ran = ran_with(short_ifca(**PICKY, max_restarts=40), **there((), everybody, everybody))
    rows = ran.spy.client_groups(ran.state.server)
    assert 1 not in rows
    assert len(set(rows[2])) < 3, "the first models did: take another seed"
    assert tries(ran) >= 1


def test_shares_are_looked_at_when_clients_choose_by_loss() -> None:
    """Five models cannot all have one of three clients."""
    picky = {**PICKY, "clusters": 5, "min_share": 0.2, "rounds": 6}
    ran = ran_with(short(**picky, explore_rounds=4, max_restarts=1))
    began = [after.facts["began"] for *_, after in ran.spy.served]
    assert began == [0] * 4 + [5] * (1 + 6)


def facts(choices: dict[str, list[int]], **changes: Any) -> ServerState:
    known = {"began": 0, "looked": False, "restarts": 0, "choices": choices, **changes}
    return ServerState(slots={}, round=max(map(int, choices)), facts=known)


def test_who_took_part_earlier_counts_by_the_last_choice() -> None:
    """Two of four clients a round: the last cohort alone would have no client for model 1."""
    config = short_ifca(clusters=2, min_share=0.5, restart_after=2)
    choices = {"1": [ABSENT, 1, ABSENT, 1], "2": [0, ABSENT, 0, ABSENT]}
    assert is_due(facts(choices), config)
    assert not has_failed(facts(choices), config)
    assert has_failed(facts({**choices, "3": [ABSENT, 0, ABSENT, ABSENT]}), config)
    assert not is_due(facts(choices, looked=True), config)


def test_choices_of_an_earlier_pool_do_not_count() -> None:
    config = short_ifca(clusters=2, min_share=0.5, restart_after=1)
    choices = {"1": [1, 1], "2": [0, ABSENT], "3": [0, 1]}
    assert has_failed(facts({k: choices[k] for k in "12"}, began=1), config)
    assert not has_failed(facts(choices, began=1), config)


def test_a_client_that_was_away_since_the_restart_is_in_no_group() -> None:
    ran = ran_with(short_ifca(**PICKY, max_restarts=1), **there((0, 1, 2), (0, 1), (0, 1), (0, 1)))
    assert tries(ran) == 1
    server, method = ran.state.server, ran.spy
    assert set(method.members(server)) == {0, 1}
    most = favourite(method.members(server).values())
    found = method.model_for(server, 2).state_dict()
    wanted = server.slots[f"head/{most}"]["classifier.weight"]
    assert any(
        torch.equal(value, wanted) for value in found.values() if value.shape == wanted.shape
    )


def test_the_servers_optimiser_forgets_the_models_that_are_gone() -> None:
    config = short_ifca(**PICKY, max_restarts=1)
    momentum = AggregationConfig(optimizer="momentum", momentum=0.9, learning_rate=1.0)
    ran = ran_with(config, aggregation=momentum)
    assert tries(ran) == 1
    _, _, _, _, drawn = ran.spy.served[0]
    before, _, means, _, after = ran.spy.served[1]
    assert before.slots == drawn.slots
    for slot, mean in means.items():
        for name, value in mean.tensors.items():
            assert torch.equal(after.slots[slot][name], value)
    sent = [turn.outcome.up for turn in ran.spy.turns if turn.phase.round == 2]
    for slot in means:
        alone = [up[slot] for up in sent if slot in up]
        if len(alone) == 1:  # without moments the first step is to the mean
            for name, value in alone[0].tensors.items():
                torch.testing.assert_close(means[slot].tensors[name], value)
