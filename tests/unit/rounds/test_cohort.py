"""Who takes part: counts, fractions as decimals, names, and draws that depend on the seed alone."""

from collections import Counter

import pytest

from coterie.contract.phase import Phase
from coterie.errors import ContractError
from coterie.rounds.participation import choose_cohort, stragglers


def phase(cohort, number=1, step=0):
    return Phase(name="p", stage="s", round=number, step=step, cohort=cohort)


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [
        (1.0, 5, 5),
        (0.5, 5, 3),
        (0.2, 5, 1),
        (0.01, 5, 1),
        (0.07, 100, 7),
        (0.55, 100, 55),
        (0.29, 100, 29),
        (0.071, 100, 8),
        (1 / 3, 9, 3),
    ],
)
def test_a_fraction_is_rounded_up_as_a_decimal(fraction, clients, count):
    assert len(choose_cohort(phase(fraction), range(clients), 0)) == count


def test_one_is_a_count_and_one_point_oh_is_everybody():
    assert len(choose_cohort(phase(1), range(9), 0)) == 1
    assert choose_cohort(phase(1.0), range(9), 0) == tuple(range(9))


def test_ids_are_taken_as_they_are_once_each_and_sorted():
    assert choose_cohort(phase((4, 1, 4, 0)), range(5), 0) == (0, 1, 4)


def test_a_draw_is_sorted_without_repetition_and_depends_on_seed_and_round():
    draws = {
        (seed, number): choose_cohort(phase(10, number), range(100), seed)
        for seed in (0, 1)
        for number in (1, 2)
    }
    for (seed, number), chosen in draws.items():
        assert list(chosen) == sorted(set(chosen))
        assert all(type(client) is int for client in chosen)
        assert choose_cohort(phase(10, number), range(100), seed) == chosen
    assert len(set(draws.values())) == 4


def test_who_is_called_to_one_phase_of_a_round_is_called_to_the_others():
    for number in range(1, 20):
        first, *later = (choose_cohort(phase(0.5, number, step), range(9), 0) for step in range(4))
        assert later == [first] * 3
        slow, *others = (
            stragglers(range(9), 0.3, 0, phase(1.0, number, step)) for step in range(4)
        )
        assert others == [slow] * 3


def test_over_many_rounds_every_client_is_drawn_as_often():
    counts = Counter(
        client for number in range(1000) for client in choose_cohort(phase(3, number), range(10), 0)
    )
    # Binomial(1000, 0.3): 300 ± 14.5; five standard deviations.
    assert set(counts) == set(range(10))
    assert all(abs(count - 300) < 73 for count in counts.values())


@pytest.mark.parametrize(
    ("cohort", "sentence"),
    [
        ((1, 5), "cohort names client 5; there are 5 clients."),
        ((), "Phase 'p' has an empty cohort; name one client or more."),
        (0, "cohort=0: 0 of 5 clients; choose one or more."),
        (6, "cohort=6: 6 of 5 clients; choose one or more."),
        (0.0, "cohort=0.0: 0 of 5 clients; choose one or more."),
        (1.5, "cohort=1.5: 8 of 5 clients; choose one or more."),
    ],
)
def test_an_impossible_cohort_is_refused(cohort, sentence):
    with pytest.raises(ContractError) as caught:
        choose_cohort(phase(cohort), range(5), 0)
    assert str(caught.value) == sentence
