"""The ledger: a version is sent to a client once, and what crosses is added up by key."""

from dataclasses import replace

import torch

from coterie.execution.events import ClientResult
from coterie.execution.packing import pack
from coterie.rounds.state import Ledger


def done(client, up, peer):
    return ClientResult(
        call=1,
        client=client,
        gathered=pack({}),
        metrics={},
        bytes_up=up,
        bytes_peer=peer,
        seconds=0.0,
        state=pack({"x": torch.ones(100)}),
    )


def test_an_unchanged_version_is_not_counted_again_for_a_client_that_has_it():
    ledger = Ledger()
    slots = {"encoder": ("v1", 100), "head": ("v1", 7)}
    assert ledger.offer([0, 1], slots) == {"encoder": 200, "head": 14}
    assert ledger.offer([0, 1], slots) == {}
    assert ledger.offer([1, 2], slots) == {"encoder": 100, "head": 7}
    assert ledger.offer([0, 1, 2], {"encoder": ("v2", 100), "head": ("v1", 7)}) == {"encoder": 300}
    assert ledger.down == 214 + 107 + 300


def test_only_the_version_last_received_is_at_the_client():
    ledger = Ledger()
    for version in ("a", "b", "a"):
        assert ledger.offer([0], {"s": (version, 5)}) == {"s": 5}
    assert ledger.down == 15


def test_what_was_left_out_of_an_offer_is_still_at_the_client():
    ledger = Ledger()
    ledger.offer([0], {"encoder": ("v1", 100), "head": ("v1", 7)})
    ledger.offer([0], {"head": ("v2", 7)})
    assert ledger.offer([0], {"encoder": ("v1", 100)}) == {}


def test_slots_of_equal_content_are_different_slots():
    ledger = Ledger()
    ledger.offer([0], {"a": ("v", 5)})
    assert ledger.offer([0], {"b": ("v", 5)}) == {"b": 5}


def test_totals_and_rows():
    ledger = Ledger()
    first = ledger.collect(
        ledger.offer([0, 1], {"e": ("v1", 10)}),
        [done(0, {"e": 18, "gathered/c": 8}, {"message": 4}), done(1, {"e": 18}, {})],
    )
    assert first.rows() == {
        "bytes/down": 20,
        "bytes/down/e": 20,
        "bytes/up": 44,
        "bytes/up/e": 36,
        "bytes/up/gathered/c": 8,
        "bytes/peer": 4,
        "bytes/peer/message": 4,
    }
    second = ledger.collect(ledger.offer([0], {"e": ("v1", 10)}), [done(0, {}, {"message": 6})])
    assert second.rows() == {
        "bytes/down": 0,
        "bytes/up": 0,
        "bytes/peer": 6,
        "bytes/peer/message": 6,
    }
    assert (ledger.down, ledger.up, ledger.peer) == (20, 44, 10)


def test_rows_that_clients_send_each_other_are_counted_by_key():
    ledger = Ledger()
    tasks = [replace(done(c, {}, {"message": 8}), items_peer={"message": 2}) for c in (0, 1)]
    traffic = ledger.collect({}, tasks)
    assert traffic.rows()["items/peer/message"] == 4
    ledger.collect({}, [replace(tasks[0], items_peer={"card": 1, "message": 1})])
    assert ledger.items == {"card": 1, "message": 5}
    assert traffic.totals == {"down": 0, "up": 0, "peer": 16}
    assert ledger.totals == {"down": 0, "up": 0, "peer": 24}


def test_a_snapshot_stays_as_it_was():
    ledger = Ledger()
    ledger.offer([0, 1], {"e": ("v1", 10)})
    before = ledger.snapshot()
    ledger.offer([1, 2], {"e": ("v2", 10)})
    assert before.versions == {0: {"e": "v1"}, 1: {"e": "v1"}}
    assert before.received == {0: 10, 1: 10}
    assert before.down == 20
