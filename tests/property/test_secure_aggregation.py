"""Secure aggregation: the bits of the sum without masks, whoever drops out, and only the sum."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from coterie.aggregation.exact import Layout
from coterie.aggregation.masked_sums import encode
from coterie.aggregation.masking import open_sums
from coterie.aggregation.masks import KEY_BYTES, add_mask
from coterie.aggregation.secure_party import threshold
from coterie.aggregation.shamir import combine, factors, split
from coterie.contract.phase import WeightedUpdate
from coterie.errors import RunError
from tests.builders.masked import (
    LAYOUTS,
    Processes,
    contribution,
    phase_run,
    same_sums,
    unmasked,
)

VALUES = st.lists(st.floats(-(2.0**10), 2.0**10, width=32), min_size=8, max_size=8)
GIVEN = st.builds(contribution, VALUES, st.integers(1, 5000), both=st.booleans())
STEPS = ("advertise", "share", "mask", "reveal")


@st.composite
def cohorts(draw):
    """Processes with 2 to 12 clients between them, of which some die."""
    clients = draw(st.integers(2, 12))
    hosts = draw(st.lists(st.integers(0, clients - 1), min_size=clients, max_size=clients))
    calls = {}
    for client, host in enumerate(hosts):
        calls.setdefault(host, {})[client] = draw(GIVEN)
    dies = draw(st.dictionaries(st.sampled_from(sorted(calls)), st.sampled_from(STEPS)))
    return Processes(calls, dies)


def left(processes, *steps):
    """The clients whose processes do not die in these steps."""
    return [
        c
        for call in processes.calls
        if processes.dies.get(call) not in steps
        for c in processes.calls[call]
    ]


@settings(max_examples=150, deadline=None)
@given(cohorts())
def test_dropouts_up_to_the_threshold_leave_the_bits_of_the_sum_and_more_are_refused(processes):
    everyone, advertised = left(processes), left(processes, "advertise")
    needed = threshold(len(advertised))
    enough = len(everyone) >= 2 and len(left(processes, *STEPS)) >= needed
    if not enough:
        with pytest.raises(RunError, match=r"Round 3: \d+ of \d+ clients are left, and privacy"):
            open_sums(processes.exchange, phase_run(), processes.clients, last=True)
        return
    opened = open_sums(processes.exchange, phase_run(), processes.clients, last=True)
    counted = left(processes, *STEPS[:3])
    expected = [g for each in processes.calls.values() for c, g in each.items() if c in counted]
    assert same_sums(opened.sums, unmasked(expected))
    assert sorted(opened.lost) == sorted(
        call for call, step in processes.dies.items() if step != "reveal"
    )


@settings(max_examples=30, deadline=None)
@given(cohorts())
def test_an_attempt_that_is_made_again_has_unmasked_nothing_and_gives_the_same_bits(processes):
    processes.dies = {call: s for call, s in processes.dies.items() if s in STEPS[:3]}
    living = {c: who for c, who in processes.clients.items() if c not in processes.dies}
    if not processes.dies or sum(map(len, living.values())) < 2:
        return
    opened = open_sums(processes.exchange, phase_run(), processes.clients, last=False)
    assert opened.sums is None
    assert all(step != "reveal" for step, *_ in processes.seen)
    first = sent(processes, "mask")
    processes.seen.clear()
    again = open_sums(processes.exchange, phase_run(), living, last=True)
    expected = [given for call in living for given in processes.calls[call].values()]
    assert same_sums(again.sums, unmasked(expected))
    second = sent(processes, "mask")
    for call in first.keys() & second.keys():
        assert (first[call] != second[call]).all()


def sent(processes, step):
    return {call: answer for at, call, _, answer in processes.seen if at == step}


def uniform(vector):
    """The probability of bytes that are this far from uniform."""
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), 255)


def large(clients, size=20_000):
    """Processes with one client each, whose contributions are all the same small numbers."""
    layouts = {"w": Layout.of({"w": torch.zeros(size)})}
    given = {"w": WeightedUpdate(weight=7, tensors={"w": torch.full((size,), 0.25)})}
    processes = Processes({call: {call: given} for call in range(clients)}, layouts=layouts)
    return processes, phase_run(layouts), given


def test_what_a_process_holds_and_what_the_driver_gets_is_uniform():
    processes, run, given = large(3)
    held = [masked.vector.copy() for masked in processes.held.calls.values()]
    open_sums(processes.exchange, run, processes.clients, last=True)
    masked = sent(processes, "mask")
    assert len(masked) == 3
    plain = encode(unmasked([given], run.layouts), run.layouts)
    assert uniform(plain) < 1e-12  # the test sees what is not masked
    for vector in (*held, *masked.values()):
        assert uniform(vector) > 1e-6
    assert uniform(masked[0] - masked[1]) > 1e-6
    sealed = b"".join(
        s
        for each in sent(processes, "share").values()
        for shares in each.values()
        for s in shares.values()
    )
    assert uniform(np.frombuffer(sealed, np.uint8)) > 1e-6


def test_the_masks_of_equal_contributions_differ_from_run_to_run():
    one, other = large(2)[0], large(2)[0]
    assert (one.held.calls[0].vector != other.held.calls[0].vector).mean() > 0.999


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.integers(2, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, clients, data):
    needed = data.draw(st.integers(2, clients))
    shares = split(secret, range(1, clients + 1), needed)
    some = data.draw(st.permutations(sorted(shares)))[:needed]
    assert combine(shares, factors(some), KEY_BYTES) == secret


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.binary(min_size=1, max_size=KEY_BYTES))
def test_fewer_shares_fit_every_secret(secret, other):
    """For each other secret there is a last share with which the given ones lead to it."""
    prime, points = 2**521 - 1, [1, 2, 3]
    shares = split(secret, points, 3)
    weights = factors(points)
    known = sum(int.from_bytes(shares[point], "big") * weights[point] for point in points[:2])
    wanted = int.from_bytes(other, "big")
    last = (wanted - known) * pow(weights[3], -1, prime) % prime
    forged = {**shares, 3: last.to_bytes(66, "big")}
    assert combine(forged, weights, len(other)) == other


def test_one_client_cannot_be_read_from_all_that_the_driver_saw_and_one_share_too_few():
    clients, victim = 5, 2
    processes, run, given = large(clients, size=500)
    seeds = {c: masked.parties[c].seed for c, masked in processes.held.calls.items()}
    open_sums(processes.exchange, run, processes.clients, last=True)
    revealed = {c: shares[c] for c, shares in sent(processes, "reveal").items()}
    masked = sent(processes, "mask")[victim]
    plain = encode(unmasked([given], run.layouts), run.layouts)
    own = {by + 1: revealed[by][victim] for by in revealed}
    needed = threshold(clients)
    assert combine(own, factors(sorted(own)[:needed]), KEY_BYTES) == seeds[victim]
    with pytest.raises(RunError, match="too few"):
        combine(own, factors(sorted(own)[: needed - 1]), KEY_BYTES)
    without_own = masked.copy()  # the protocol reveals the own mask, and the others stay
    add_mask(without_own, seeds[victim], negative=True)
    assert (without_own != plain).mean() > 0.99
    assert all(client in seeds for each in revealed.values() for client in each)
    shares = {len(share) for each in revealed.values() for share in each.values()}
    assert shares == {66}  # one share of each client, never both of its secrets


def test_two_slots_of_which_nobody_sends_one_give_one_sum():
    given = contribution([1.0] * 8, 5, both=False)
    processes = Processes({1: {0: given}, 2: {1: given}})
    assert open_sums(processes.exchange, phase_run(), processes.clients, last=True).sums.keys() == {
        "a"
    }
    assert LAYOUTS.keys() == {"a", "b"}
