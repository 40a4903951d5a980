"""The gate: nothing undeclared, misshapen or not finite passes, and every byte is counted."""

import pytest
import torch

from coterie.contract.phase import Mean, Outcome, Phase, ServerState
from coterie.errors import ContractError
from coterie.execution.exact import Layout
from coterie.execution.messages import bytes_peer, bytes_up, check_offer, check_outcome, items_peer

PHASE = Phase(
    name="train",
    stage="s",
    round=1,
    down=frozenset({"encoder", "head"}),
    up=frozenset({"encoder"}),
    records=frozenset({"choice"}),
    mail=frozenset({"note"}),
    metrics=frozenset({"loss"}),
)
SLOT = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
SERVER = ServerState(slots={"encoder": SLOT, "head": {"w": torch.zeros(1)}})
LAYOUTS = {"encoder": Layout.of(SLOT)}


def up(weight=4, **tensors):
    return {"encoder": Mean(weight=weight, tensors={**SLOT, **tensors})}


def check(outcome, clients=range(3)):
    check_outcome(PHASE, outcome, LAYOUTS, clients)


GOOD = Outcome(
    up=up(),
    records={"choice": torch.tensor([1, 2])},
    state={"anything": torch.tensor(torch.nan)},
    mail={2: {"note": torch.ones(5)}, 0: {"note": torch.ones(1).double()}},
    metrics={"loss": 0.5},
)


def test_what_is_declared_passes():
    check(GOOD)
    check(Outcome())


def test_bytes_are_exact():
    # 9 float32 and a weight; 2 int64; one metric.
    assert bytes_up(GOOD) == {"encoder": 9 * 4 + 8, "records/choice": 16, "metrics": 8}
    assert bytes_peer(GOOD) == {"note": 5 * 4 + 8}
    half = Outcome(up={"encoder": Mean(weight=1, tensors={"w": torch.zeros(5).bfloat16()})})
    assert bytes_up(half) == {"encoder": 10 + 8}
    assert (bytes_up(Outcome()), bytes_peer(Outcome())) == ({}, {})
    assert items_peer(GOOD) == {"note": 5 + 1}
    assert items_peer(Outcome(mail={1: {"note": torch.tensor(3.0)}})) == {"note": 1}


def test_what_a_client_keeps_is_no_message():
    assert bytes_up(Outcome(state={"x": torch.ones(100)})) == {}


UNDECLARED = "Phase 'train' {} undeclared; add it to Phase.{}."


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (Outcome(up={"head": up()["encoder"]}), UNDECLARED.format("sends up slot 'head'", "up")),
        (Outcome(records={"z": torch.ones(1)}), UNDECLARED.format("sends record 'z'", "records")),
        (
            Outcome(mail={1: {"note": torch.ones(1)}, 2: {"image": torch.ones(1)}}),
            UNDECLARED.format("mails 'image'", "mail"),
        ),
        (Outcome(metrics={"acc": 1.0}), UNDECLARED.format("reports metric 'acc'", "metrics")),
        (
            Outcome(up=up(w=torch.zeros(3, 2))),
            "Slot 'encoder': 'w' has shape (3, 2) for (2, 3); send the server's shapes.",
        ),
        (
            Outcome(up=up(extra=torch.zeros(1))),
            "Slot 'encoder': 'extra' has shape (1,) for None; send the server's shapes.",
        ),
        (
            Outcome(up={"encoder": Mean(weight=1, tensors={"w": SLOT["w"]})}),
            "Slot 'encoder': 'b' has shape None for (3,); send the server's shapes.",
        ),
        (
            Outcome(up=up(b=torch.tensor([0.0, torch.nan, 0.0]))),
            "slot 'encoder': 'b' is not finite; lower the learning rate or drop the client.",
        ),
        (
            Outcome(up=up(b=torch.tensor([0.0, 0.0, -torch.inf]))),
            "slot 'encoder': 'b' is not finite; lower the learning rate or drop the client.",
        ),
        (
            Outcome(records={"choice": torch.tensor(torch.inf)}),
            "record: 'choice' is not finite; lower the learning rate or drop the client.",
        ),
        (
            Outcome(mail={1: {"note": torch.tensor([torch.nan])}}),
            "mail to client 1: 'note' is not finite; lower the learning rate or drop the client.",
        ),
        (
            Outcome(mail={3: {"note": torch.ones(1)}}),
            "Mail goes to client 3, which does not exist.",
        ),
        (Outcome(mail={-1: {}}), "Mail goes to client -1, which does not exist."),
    ],
)
def test_anything_else_is_refused(outcome, sentence):
    with pytest.raises(ContractError) as caught:
        check(outcome)
    assert str(caught.value) == sentence


def test_where_the_clients_are_not_known_any_recipient_passes():
    check(Outcome(mail={77: {"note": torch.ones(1)}}), clients=None)


def test_an_offer_of_just_the_declared_slots_passes():
    check_offer(PHASE, SERVER.slots, SERVER)


@pytest.mark.parametrize(
    ("slots", "server", "sentence"),
    [
        (
            {**SERVER.slots, "secret": {}},
            SERVER,
            UNDECLARED.format("offers slot 'secret'", "down"),
        ),
        (
            {"encoder": SLOT},
            SERVER,
            "Phase 'train' declares slot 'head' in Phase.down but does not offer it; "
            "return it from offer.",
        ),
        (
            SERVER.slots,
            ServerState(slots={"head": {}}),
            "Phase 'train' averages slot 'encoder', which the server's state lacks; "
            "give it a value in init.",
        ),
    ],
)
def test_any_other_offer_is_refused(slots, server, sentence):
    with pytest.raises(ContractError) as caught:
        check_offer(PHASE, slots, server)
    assert str(caught.value) == sentence
