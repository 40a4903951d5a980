"""What crosses in CF-CL, between devices and to the server: every key, shape, type and byte."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from modules.cfcl import CFCL, RULES
from modules.cfcl_model import TripletModel
from tests.small_cfcl import letters, ran, short, turns
from tests.small_federation import SHAPE, SIZES, Federated, tiny_task

WIDTH, FEATURES = 8, 6
ENCODER = {
    "encoder.network.1.weight": (WIDTH, 64),
    "encoder.network.2.weight": (WIDTH,),
    "encoder.network.2.bias": (WIDTH,),
    "encoder.network.2.running_mean": (WIDTH,),
    "encoder.network.2.running_var": (WIDTH,),
    "encoder.network.4.weight": (FEATURES, WIDTH),
    "encoder.network.4.bias": (FEATURES,),
}
PAIRS = set(itertools.permutations(range(len(SIZES)), 2))
EMBEDDED = [
    {"exchange": "implicit"},
    *({"exchange": exchange, "medium": "embeddings"} for exchange in ("uniform", "bulk", "kmeans")),
]


def shapes(tensors: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


@pytest.fixture(scope="module")
def explicit() -> Federated:
    return ran(exchange="explicit")


@pytest.fixture(scope="module")
def implicit() -> Federated:
    return ran(exchange="implicit")


@pytest.mark.parametrize("exchange", ["explicit", "implicit", "none", "kmeans"])
def test_to_the_server_go_encoders_alone(exchange: str) -> None:
    done = ran(exchange=exchange)
    for turn in done.spy.turns:
        assert turn.outcome.records == {}
        if turn.phase.name == "aggregate":
            assert set(turn.outcome.up) == {"encoder"}
            assert shapes(turn.outcome.up["encoder"].tensors) == ENCODER
        else:
            assert turn.outcome.up == {}
        down = {slot: shapes(tensors) for slot, tensors in turn.slots.items()}
        setup = {"edges": (3, 2), "seed": (1,), "unit": (1,)}
        model = {} if turn.phase.name == "aggregate" else {"encoder": ENCODER}
        assert down == model | {"setup": setup}


def test_explicit_letters(explicit: Federated) -> None:
    assert {(by, to) for by, to, *_ in letters(explicit)} == PAIRS
    for turn in turns(explicit, "push"):
        assert turn.phase.round == 1
        for letter in turn.outcome.mail.values():
            assert shapes(letter) == {"reserve_samples": (4, *SHAPE)}
    for turn in turns(explicit, "pull"):
        for letter in turn.outcome.mail.values():
            assert shapes(letter) == {"samples": (2, *SHAPE)}
    assert {value.dtype for *_, value in letters(explicit)} == {torch.uint8}
    assert len(turns(explicit, "push")) == len(SIZES)  # once and for all
    assert len(turns(explicit, "pull")) == 3 * len(SIZES)


def test_implicit_letters(implicit: Federated) -> None:
    kinds = {(turn.phase.name, tuple(shapes(letter).items()))
             for turn in implicit.spy.turns for letter in turn.outcome.mail.values()}  # fmt: skip
    assert kinds == {
        ("push", (("reserve_embeddings", (4, FEATURES)),)),
        ("pull", (("embeddings", (2, FEATURES)),)),
    }
    assert len(turns(implicit, "push")) == len(turns(implicit, "pull")) == 3 * len(SIZES)


@pytest.mark.parametrize("changes", EMBEDDED, ids=lambda changes: changes["exchange"])
def test_in_implicit_mode_nothing_like_an_image_ever_leaves_a_device(changes: Any) -> None:
    done = ran(**changes)
    images = done.backend._worker.samples["train"]
    known = {row.tobytes() for row in images.reshape(len(images), -1)}
    unit = {row.tobytes() for row in (images / 255.0).reshape(len(images), -1)}
    pixels = int(np.prod(SHAPE))
    sent = [(key, value) for *_, key, value in letters(done)]
    assert sent
    for turn in done.spy.turns:
        declared = {"push": {"reserve_embeddings"}, "pull": {"embeddings"}}
        assert turn.phase.mail == declared.get(turn.phase.name, set())
        assert turn.phase.records == set()
        sent += list(turn.outcome.up.get("encoder").tensors.items()) if turn.outcome.up else []
    for key, value in sent:
        assert value.is_floating_point(), key
        if not key.startswith("encoder."):
            assert value.shape[1:] == (FEATURES,), key
        for row in value.reshape(-1, pixels) if value.numel() % pixels == 0 else []:
            assert row.numpy().tobytes() not in known | unit, key


def test_samples_do_leave_in_explicit_mode(explicit: Federated) -> None:
    """So that the test above could fail."""
    images = explicit.backend._worker.samples["train"]
    known = {row.tobytes() for row in images}
    assert all(row.numpy().tobytes() in known for *_, value in letters(explicit) for row in value)


def test_every_state_entry_has_a_rule() -> None:
    module = TripletModel(short(), tiny_task())
    RULES.check(module)
    assert {RULES.of(name).slot for name in ENCODER} == {"encoder"}
    assert isinstance(CFCL(short(), tiny_task())._build(), TripletModel)


def test_bytes_and_items_are_those_counted_by_hand(
    explicit: Federated, implicit: Federated
) -> None:
    clients, pairs = len(SIZES), len(PAIRS)
    size = 8 * sum(int(np.prod(shape)) for shape in ENCODER.values())
    setup = 8 * (3 * 2 + 1 + 1)
    for done, key, pushes, each in (
        (explicit, "samples", 1, 64), (implicit, "embeddings", 3, 8 * FEATURES),
    ):  # fmt: skip
        items = {f"reserve_{key}": pushes * pairs * 4, key: 3 * pairs * 2}
        ledger = done.state.ledger
        assert ledger.items == dict(sorted(items.items()))
        assert ledger.peer == sum(items.values()) * each
        # Each of the three global models but the last, and the set-up once.
        assert ledger.down == clients * (3 * size + setup)
        trained = len(turns(done, "train"))
        assert ledger.up == clients * 3 * (size + 8 + 8) + trained * 8 * 6
        for commit in done.commits:
            flat = commit.traffic.rows()
            counted = {k: v for k, v in flat.items() if k.startswith("items/")}
            name = {"push": f"reserve_{key}", "pull": key}.get(commit.phase.name)
            wanted = {f"items/peer/{name}": pairs * (4 if "reserve" in name else 2)} if name else {}
            assert counted == wanted


def test_what_a_device_keeps_holds_its_neighbours_data(explicit: Federated) -> None:
    for client, kept in explicit.kept.items():
        names = {name for name in kept if name.partition("/")[0] in ("reserves", "pulled")}
        others = set(range(len(SIZES))) - {client}
        assert names == {f"{group}/{by}" for group in ("reserves", "pulled") for by in others}
        assert kept["reserve"].shape == (4,)
