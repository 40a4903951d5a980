"""The gate: nothing undeclared, misshapen or not finite passes, and every byte is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.aggregation.exact import ExactMeans, Layout, sum_limit
from coterie.contract.phase import Outcome, Phase, ServerState, WeightedUpdate
from coterie.contract.tensor_spec import Bounds, TensorSpec
from coterie.errors import ContractError
from coterie.execution.messages import bytes_peer, bytes_up, check_offer, check_outcome, items_peer

DIVERGED = "is not finite; lower the learning rate, scale the data, or drop the client."
PHASE = Phase(
    name="train",
    stage="s",
    round=1,
    down=frozenset({"encoder", "head"}),
    up=frozenset({"encoder"}),
    gathered=frozenset({"choice"}),
    peer_messages=frozenset({"note"}),
    metrics=frozenset({"loss"}),
)
SLOT = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
SERVER = ServerState(slots={"encoder": SLOT, "head": {"w": torch.zeros(1)}})
LAYOUTS = {"encoder": Layout.of(SLOT)}


def up(weight=4, **tensors):
    return {"encoder": WeightedUpdate(weight=weight, tensors={**SLOT, **tensors})}


def check(outcome, clients=range(3), phase=PHASE, **limits):
    check_outcome(phase, outcome, LAYOUTS, clients, **limits)


GOOD = Outcome(
    up=up(),
    gathered={"choice": torch.tensor([1, 2])},
    state={"anything": torch.tensor(torch.nan)},
    peer_messages={2: {"note": torch.ones(5)}, 0: {"note": torch.ones(1).double()}},
    metrics={"loss": 0.5},
)


def test_what_is_declared_passes():
    check(GOOD)
    check(Outcome())


def test_bytes_are_exact():
    # 9 float32 and a weight; 2 int64; one metric.
    assert bytes_up(GOOD) == {"encoder": 9 * 4 + 8, "gathered/choice": 16, "metrics": 8}
    assert bytes_peer(GOOD) == {"note": 5 * 4 + 8}
    half = Outcome(
        up={"encoder": WeightedUpdate(weight=1, tensors={"w": torch.zeros(5).bfloat16()})}
    )
    assert bytes_up(half) == {"encoder": 10 + 8}
    assert (bytes_up(Outcome()), bytes_peer(Outcome())) == ({}, {})
    assert items_peer(GOOD) == {"note": 5 + 1}
    assert items_peer(Outcome(peer_messages={1: {"note": torch.tensor(3.0)}})) == {"note": 1}


def test_what_a_client_keeps_is_no_message():
    assert bytes_up(Outcome(state={"x": torch.ones(100)})) == {}


UNDECLARED = "Phase 'train' {} undeclared; add it to Phase.{}."


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (Outcome(up={"head": up()["encoder"]}), UNDECLARED.format("sends up slot 'head'", "up")),
        (
            Outcome(gathered={"z": torch.ones(1)}),
            UNDECLARED.format("sends gathered tensor 'z'", "gathered"),
        ),
        (
            Outcome(peer_messages={1: {"note": torch.ones(1)}, 2: {"image": torch.ones(1)}}),
            UNDECLARED.format("sends peer message 'image'", "peer_messages"),
        ),
        (Outcome(metrics={"acc": 1.0}), UNDECLARED.format("reports metric 'acc'", "metrics")),
        (
            Outcome(metrics={"loss": 1.0, "messages": 1.0}),
            "metric: 'messages' names a column of every row; rename it.",
        ),
        (
            Outcome(up=up(w=torch.zeros(3, 2))),
            "Slot 'encoder': 'w' has shape (3, 2) for (2, 3); send the server's shapes.",
        ),
        (
            Outcome(up=up(extra=torch.zeros(1))),
            "Slot 'encoder': 'extra' is new; send the server's tensors, which a module creates "
            "in __init__.",
        ),
        (
            Outcome(up={"encoder": WeightedUpdate(weight=1, tensors={"w": SLOT["w"]})}),
            "Slot 'encoder': 'b' is missing; send all of the server's tensors.",
        ),
        (
            Outcome(up=up(b=torch.tensor([0.0, torch.nan, 0.0]))),
            f"slot 'encoder': 'b' {DIVERGED}",
        ),
        (
            Outcome(up=up(b=torch.tensor([0.0, 0.0, -torch.inf]))),
            f"slot 'encoder': 'b' {DIVERGED}",
        ),
        (
            Outcome(gathered={"choice": torch.tensor(torch.inf)}),
            f"gathered: 'choice' {DIVERGED}",
        ),
        (
            Outcome(peer_messages={1: {"note": torch.tensor([torch.nan])}}),
            f"peer message to client 1: 'note' {DIVERGED}",
        ),
        (
            Outcome(peer_messages={3: {"note": torch.ones(1)}}),
            "A peer message goes to client 3; send it to one that may receive it.",
        ),
        (
            Outcome(peer_messages={-1: {}}),
            "A peer message goes to client -1; send it to one that may receive it.",
        ),
        (
            Outcome(peer_messages={np.int64(2): {}}),
            "A peer message goes to client np.int64(2); give its id as an int.",
        ),
        (Outcome(up=up(True)), "Slot 'encoder' has weight True; give a positive int."),
        (Outcome(up=up(0)), "Slot 'encoder' has weight 0; give a positive int."),
        (
            Outcome(smallest={"choice": np.int64(2)}),
            "Outcome.smallest['choice'] is np.int64(2); give an int from 0 to 2^53.",
        ),
        (
            Outcome(smallest={"choice": 10**400}),
            f"Outcome.smallest['choice'] is {10**400}; give an int from 0 to 2^53.",
        ),
        (
            Outcome(smallest={b"choice": 1}),
            "Outcome.smallest has the key b'choice'; "
            "give a printable str of at most 1000 characters.",
        ),
        (
            Outcome(smallest={"choice": "x"}),
            "Outcome.smallest['choice'] is 'x'; give an int from 0 to 2^53.",
        ),
    ],
)
def test_anything_else_is_refused(outcome, sentence):
    with pytest.raises(ContractError) as caught:
        check(outcome)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (None, "It returned NoneType; return an Outcome."),
        (
            Outcome(up=up(b=torch.zeros(3, dtype=torch.complex64))),
            "slot 'encoder': 'b' is torch.complex64; send a dense tensor of real numbers.",
        ),
        (
            Outcome(up=up(b=torch.zeros(3, dtype=torch.int64))),
            "slot 'encoder': 'b' is torch.int64; send torch.float32.",
        ),
        (
            Outcome(up=up(b=torch.full((3,), 1e300, dtype=torch.float64))),
            "slot 'encoder': 'b' is torch.float64; send torch.float32.",
        ),
        (
            Outcome(up=up(b=torch.full((3,), 3e38))),
            "Slot 'encoder' has a value of 3e+38; training diverged; lower the learning rate.",
        ),
        (Outcome(up=up(b="abc")), "slot 'encoder': 'b' is str; send a tensor."),
        (
            Outcome(up=up(b=torch.zeros(3).to_sparse())),
            "slot 'encoder': 'b' is torch.sparse_coo; send a dense tensor of real numbers.",
        ),
        (Outcome(gathered={"choice": "two"}), "gathered: 'choice' is str; send a tensor."),
        (
            Outcome(gathered={"choice": torch.zeros(1, dtype=torch.complex128)}),
            "gathered: 'choice' is torch.complex128; send a dense tensor of real numbers.",
        ),
        (
            Outcome(gathered={"choice": torch.tensor([0.0, -1e38])}),
            "gathered: 'choice' has a value of -1e+38; send -1e+12 to 1e+12.",
        ),
        (
            Outcome(peer_messages={1: {"note": torch.tensor([1e38])}}),
            "peer message to client 1: 'note' has a value of 1e+38; send -1e+12 to 1e+12.",
        ),
        (
            Outcome(peer_messages={1: {"note": [1.0]}}),
            "peer message to client 1: 'note' is list; send a tensor.",
        ),
        (
            Outcome(state={"x": torch.zeros(1).to_sparse()}),
            "state: 'x' is torch.sparse_coo; send a dense tensor of real numbers.",
        ),
        (
            Outcome(state={"x": torch.zeros(1, device="meta")}),
            "state: 'x' has no values; take it off the meta device.",
        ),
        (Outcome(state={"x": [1.0]}), "state: 'x' is list; send a tensor."),
        (Outcome(metrics={"loss": "low"}), "metric: 'loss' is str; report a number."),
        (Outcome(metrics={"loss": torch.ones(())}), "metric: 'loss' is Tensor; report a number."),
        (
            Outcome(metrics={"loss": float("nan")}),
            f"metric: 'loss' {DIVERGED}",
        ),
        (
            Outcome(metrics={"loss": 1e38}),
            "metric: 'loss' has a value of 1e+38; send -1e+12 to 1e+12.",
        ),
    ],
)
def test_what_is_no_number_or_beyond_all_bounds_is_refused(outcome, sentence):
    with pytest.raises(ContractError) as caught:
        check(outcome)
    assert str(caught.value) == sentence


class Text(str):
    """No plain str."""


@pytest.mark.parametrize("key", [b"x", ("a", "b"), "\ud800", "a\nb", "x" * 1001, Text("x")])
def test_what_a_client_keeps_has_names_that_a_checkpoint_can_hold(key):
    with pytest.raises(ContractError, match=r"^Outcome.state has the key .*; give a printable str"):
        check(Outcome(state={key: torch.ones(1)}))


def test_a_metric_is_converted_once():
    class Turncoat(float):
        asked = 0

        def __float__(self):
            self.asked += 1
            return 1.0 if self.asked == 1 else float("nan")

    found = check_outcome(PHASE, Outcome(metrics={"loss": Turncoat(2.0)}), LAYOUTS, None)
    assert (found.metrics, type(found.metrics["loss"])) == ({"loss": 1.0}, float)


SPECS = replace(
    PHASE,
    gathered=frozenset({"choice", "points"}),
    specs={
        "choice": TensorSpec(dtype=torch.int64, lowest=0, highest=3),
        "points": TensorSpec(shape=(range(1, 5), 2)),
        "note": TensorSpec(shape=(3,), highest=1.0, per_sample=True),
        "loss": TensorSpec(lowest=0.0),
    },
)
CHOICE, POINTS = torch.tensor(3), torch.zeros(4, 2)


def test_what_has_its_form_passes():
    note = torch.full((3,), 7.0).bfloat16()
    outcome = Outcome(
        gathered={"choice": CHOICE, "points": POINTS},
        peer_messages={1: {"note": note}},
        metrics={"loss": np.float32(0.0)},
    )
    check(outcome, phase=SPECS, samples=7)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            {"gathered": {"choice": CHOICE}},
            "declares gathered tensor 'points'; send it from every client.",
        ),
        ({"gathered": {}}, "declares gathered tensor 'choice'; send it from every client."),
        ({"choice": torch.tensor([3])}, "gathered: 'choice' has shape (1,); send ()."),
        ({"choice": torch.tensor(4)}, "gathered: 'choice' has a value of 4; send 0 to 3."),
        ({"choice": torch.tensor(-1)}, "gathered: 'choice' has a value of -1; send 0 to 3."),
        ({"choice": torch.tensor(1.0)}, "gathered: 'choice' is torch.float32; send torch.int64."),
        ({"points": torch.zeros(4, 3)}, "gathered: 'points' has shape (4, 3); send (1 to 4, 2)."),
        ({"points": torch.zeros(5, 2)}, "gathered: 'points' has shape (5, 2); send (1 to 4, 2)."),
        ({"points": torch.zeros(0, 2)}, "gathered: 'points' has shape (0, 2); send (1 to 4, 2)."),
        ({"points": torch.zeros(4)}, "gathered: 'points' has shape (4,); send (1 to 4, 2)."),
        ({"points": torch.zeros(4, 2).int()}, "'points' is torch.int32; send floating."),
        (
            {"peer_messages": {1: {"note": torch.full((3,), 8.0)}}},
            "peer message to client 1: 'note' has a value of 8; send -1e+12 to 7.",
        ),
        ({"metrics": {"loss": -0.5}}, "metric: 'loss' has a value of -0.5; send 0 to 1e+12."),
    ],
)
def test_another_shape_type_or_range_is_refused(outcome, sentence):
    gathered = {key: value for key, value in outcome.items() if key in SPECS.gathered}
    given = {key: value for key, value in outcome.items() if key not in SPECS.gathered}
    whole = {"gathered": {"choice": CHOICE, "points": POINTS, **gathered}, **given}
    with pytest.raises(ContractError) as caught:
        check(Outcome(**whole), phase=SPECS, samples=7)
    assert str(caught.value).endswith(sentence)


@pytest.mark.parametrize("rows", [3, 5])
def test_tensors_that_belong_together_are_equally_long(rows):
    numbers = TensorSpec(shape=(range(9),), as_long_as="points")
    phase = replace(SPECS, specs={**SPECS.specs, "points": TensorSpec(shape=(range(9), 2))})
    phase = replace(phase, specs={**phase.specs, "choice": numbers})
    check(Outcome(gathered={"choice": torch.ones(4), "points": POINTS}), phase=phase)
    uneven = Outcome(gathered={"choice": torch.ones(rows), "points": POINTS})
    with pytest.raises(ContractError) as caught:
        check(uneven, phase=phase)
    says = f"gathered: 'choice' has {rows} rows, and 'points' 4; send equally many."
    assert str(caught.value) == says


def test_where_the_clients_are_not_known_any_recipient_passes():
    check(Outcome(peer_messages={77: {"note": torch.ones(1)}}), clients=None)


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


def test_sums_lie_between_what_the_clients_samples_can_add():
    columns = Bounds(lowest=(-2.0, 0.0), highest=(2.0, 1.0))
    phase = Phase(
        name="sums",
        stage="s",
        round=1,
        up=frozenset({"sums"}),
        bounds={"sums": {"x": columns, "n": Bounds(highest=3.0)}},
    )

    def check(x, n, weight=1, samples=10):
        tensors = {"x": torch.tensor(x), "n": torch.tensor(n)}
        layouts = {"sums": Layout.of(tensors)}
        up = {"sums": WeightedUpdate(weight=weight, tensors=tensors)}
        check_outcome(phase, Outcome(up=up), layouts, None, samples=samples)

    check([[20.0, 10.0], [-20.0, 0.0]], 30.0)
    check([[2.0, 1.0]], -3.0, weight=10)
    for wrong in (
        ([[20.5, 0.0]], 0.0),
        ([[0.0, 10.5]], 0.0),
        ([[0.0, -0.5]], 0.0),
        ([[0.0, 0.0]], 31.0),
    ):
        with pytest.raises(
            ContractError, match="which no sum over the client's 10 samples can have"
        ):
            check(*wrong)
    with pytest.raises(ContractError, match="'x' has a value of 11, which no sum over"):
        check([[0.0, 1.0]], 0.0, weight=11)


def test_sums_may_be_as_large_as_they_are_exact_for_every_client():
    def send(value, weight=1, clients=4):
        sums = {"sums": WeightedUpdate(weight=weight, tensors={"x": torch.tensor([value])})}
        layouts = {"sums": Layout.of(sums["sums"].tensors, sum_limit=sum_limit(clients))}
        phase = replace(PHASE, up=frozenset({"sums"}))
        check_outcome(phase, Outcome(up=sums), layouts, None)
        ExactMeans(layouts).add(0, sums)

    send(2.0**28)
    send(-(2.0**22), clients=2**20)
    for wrong in ((2.0**28 * 1.01,), (2.0**28, 2), (2.0**22 * 1.01, 1, 2**20)):
        with pytest.raises(ContractError, match=r"sums are exact up to .*; scale the features\.$"):
            send(*wrong)


class Name(str):
    """A name that cannot be sent."""

    def __reduce__(self):
        raise RuntimeError("it fails on the way")


@pytest.mark.parametrize("part", ["up", "gathered", "peer_messages", "metrics", "inner"])
def test_names_of_a_clients_own_type_are_refused(part):
    renamed = {Name(name): value for name, value in SLOT.items()}
    named = {
        "up": {"up": {Name("encoder"): up()["encoder"]}},
        "inner": {"up": {"encoder": WeightedUpdate(weight=4, tensors=renamed)}},
        "gathered": {"gathered": {Name("choice"): torch.ones(1)}},
        "peer_messages": {"peer_messages": {0: {Name("note"): torch.ones(1)}}},
        "metrics": {"metrics": {Name("loss"): 1.0}},
    }[part]
    with pytest.raises(ContractError, match=r"has the key .*; give a printable str"):
        check(Outcome(**named))


class Finite(torch.Tensor):
    """A tensor that says of its least and largest value what is not so."""

    @classmethod
    def __torch_function__(cls, call, types, args=(), kwargs=None):
        if call is torch.aminmax:
            return torch.zeros(()), torch.ones(())
        return super().__torch_function__(call, types, args, kwargs or {})


class Changing(dict):
    """A mapping that shows other values than it holds."""

    def items(self):
        return {name: torch.zeros(2) for name in self}.items()


def dressed(value, **attributes):
    """A tensor with attributes in the place of PyTorch's methods."""
    for name, instead in attributes.items():
        setattr(value, name, instead)
    return value


NAN = (torch.nan, torch.nan)


@pytest.mark.parametrize(
    "gathered",
    [
        {"choice": torch.full((2,), torch.nan).as_subclass(Finite)},
        Changing(choice=torch.full((2,), torch.nan)),
        {"choice": dressed(torch.tensor(NAN), numel=lambda: 0)},
        {"choice": dressed(torch.tensor(NAN), is_floating_point=lambda: False)},
        {"choice": dressed(torch.nn.Parameter(torch.tensor(NAN)), detach=lambda: torch.zeros(2))},
    ],
)
def test_what_is_checked_is_what_is_sent(gathered):
    with pytest.raises(ContractError, match="'choice' is not finite"):
        check(Outcome(gathered=gathered))


def test_tensors_of_a_librarys_type_are_sent_as_plain_ones():
    sent = Outcome(gathered={"choice": torch.arange(2).as_subclass(Finite)})
    found = check_outcome(PHASE, sent, LAYOUTS, range(3)).gathered["choice"]
    assert type(found) is torch.Tensor
    assert found.tolist() == [0, 1]


def test_an_attribute_in_place_of_a_method_makes_no_complex_number_real():
    lies = {"is_complex": lambda: False, "numel": lambda: 0, "is_floating_point": lambda: False}
    with pytest.raises(ContractError, match=r"is torch\.complex64; send a dense tensor of real"):
        check(Outcome(gathered={"choice": dressed(torch.ones(2, dtype=torch.complex64), **lies)}))


@pytest.mark.parametrize("part", ["gathered", "state", "peer_messages"])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.bits8, torch.float8_e5m2])
def test_numbers_that_no_checkpoint_reads_back_are_refused(part, dtype):
    value = torch.zeros(4, dtype=torch.uint8 if dtype.itemsize == 1 else torch.int16).view(dtype)
    given = {"choice": value} if part != "peer_messages" else {2: {"note": value}}
    with pytest.raises(ContractError, match=f"is {dtype}; send a dense tensor of real numbers"):
        check(Outcome(**{part: given}))
