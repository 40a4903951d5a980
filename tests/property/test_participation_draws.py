"""Draws of clients: deterministic, whatever the order, of the right size, evenly spread."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.contract.phase import Phase
from coterie.rounds.participation import choose_cohort, dropouts, failed_devices, stragglers

seeds = st.integers(0, 2**32)
rates = st.floats(0.0, 1.0, exclude_max=True)
cohorts = st.sets(st.integers(0, 60))


def phase(number=1, step=0, cohort=1.0):
    return Phase(name="p", stage="s", round=number, step=step, cohort=cohort)


@given(cohort=cohorts, rate=rates, seed=seeds, number=st.integers(1, 99), step=st.integers(0, 3))
def test_a_draw_is_deterministic_and_independent_of_the_order(cohort, rate, seed, number, step):
    place = phase(number, step)
    for draw in (dropouts, stragglers):
        drawn = draw(sorted(cohort), rate, seed, place)
        assert drawn == draw(sorted(cohort, reverse=True), rate, seed, place)
        assert drawn <= cohort
    assert abs(len(stragglers(cohort, rate, seed, place)) - rate * len(cohort)) <= 0.5 + 1e-9


@given(cohort=cohorts, more=cohorts, rate=rates, seed=seeds)
def test_whether_a_client_drops_out_does_not_depend_on_the_others(cohort, more, rate, seed):
    alone = dropouts(cohort, rate, seed, phase())
    assert dropouts(cohort | more, rate, seed, phase()) & cohort == alone


@given(clients=st.integers(1, 60), low=rates, high=rates, seed=seeds)
def test_failed_devices_have_the_right_number_and_grow_with_the_rate(clients, low, high, seed):
    low, high = sorted((low, high))
    few, many = (failed_devices(clients, rate, seed) for rate in (low, high))
    assert few <= many < set(range(clients))
    assert abs(len(few) - min(low * clients, clients - 1)) <= 0.5 + 1e-9


@given(present=cohorts, size=st.integers(1, 61), seed=seeds)
def test_a_cohort_is_drawn_from_those_present(present, size, seed):
    drawn = choose_cohort(phase(cohort=size), range(61), seed, present)
    assert len(drawn) == min(size, len(present))
    assert set(drawn) <= present
    assert list(drawn) == sorted(drawn)
    named = choose_cohort(phase(cohort=(3, 1, 60)), range(61), seed, present)
    assert set(named) == {1, 3, 60} & present


def test_without_anything_configured_all_are_present():
    for cohort in (0.3, 7, (4, 2)):
        place = phase(cohort=cohort)
        assert choose_cohort(place, range(20), 5) == choose_cohort(place, range(20), 5, range(20))


@pytest.mark.parametrize("draw", [dropouts, stragglers])
def test_over_many_rounds_every_client_is_drawn_as_often_as_the_rate_says(draw):
    drawn = [draw(range(10), 0.3, 0, phase(number)) for number in range(1, 1001)]
    counts = Counter(client for clients in drawn for client in clients)
    # Binomial(1000, 0.3): 300 ± 14.5; five standard deviations.
    assert all(abs(counts[client] - 300) < 73 for client in range(10))
    assert len(set(drawn)) > 50
    if draw is stragglers:
        assert {len(clients) for clients in drawn} == {3}
