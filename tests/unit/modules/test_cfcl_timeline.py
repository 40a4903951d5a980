"""When CF-CL's devices push, pull, train and aggregate."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.modules.cfcl_timeline import CFCLConfig, Event, check_exchange, timeline


def events(**changes: object) -> list[list[str]]:
    """Each round as "kind@step" and, of training, "train@first-last"."""

    def name(event: Event) -> str:
        last = f"-{event.step + event.steps - 1}" if event.kind == "train" else ""
        return f"{event.kind}@{event.step}{last}"

    return [[name(event) for event in round_] for round_ in timeline(CFCLConfig(**changes))]


def test_uspss_intervals() -> None:
    """T_a = 10, T_p = 25: segments of 10, 10, 5, pull, 5, …; no pull at 0; one last aggregation."""
    found = events(total_steps=55, aggregate_every=10, pull_every=25, exchange="explicit")
    assert found == [
        ["push@0", "train@1-9", "aggregate@10"],
        ["train@10-19", "aggregate@20"],
        ["train@20-24", "pull@25", "train@25-29", "aggregate@30"],
        ["train@30-39", "aggregate@40"],
        ["train@40-49", "aggregate@50"],
        ["pull@50", "train@50-55", "aggregate@55"],
    ]


def test_reserve_embeddings_are_pushed_after_each_aggregation() -> None:
    found = events(total_steps=55, aggregate_every=10, pull_every=25, exchange="implicit")
    pushes = [name for round_ in found for name in round_ if name.startswith("push")]
    assert pushes == ["push@10", "push@20", "push@30", "push@40", "push@50"]
    assert found[-1] == ["push@50", "pull@50", "train@50-55", "aggregate@55"]


def test_a_pull_before_the_first_aggregation_needs_embeddings_of_the_initial_model() -> None:
    found = events(total_steps=5, aggregate_every=3, pull_every=2, exchange="implicit")
    assert found[0] == ["push@0", "train@1-1", "pull@2", "train@2-2", "aggregate@3"]


def test_the_last_step_may_have_an_aggregation_on_both_sides() -> None:
    found = events(total_steps=4, aggregate_every=2, pull_every=2, exchange="uniform")
    assert found == [
        ["train@1-1", "aggregate@2"],
        ["pull@2", "train@2-3", "aggregate@4"],
        ["pull@4", "train@4-4", "aggregate@4"],
    ]


def test_aggregation_in_every_step_has_nothing_to_average_before_the_first() -> None:
    found = events(total_steps=2, aggregate_every=1, pull_every=1, exchange="implicit")
    assert found == [
        ["push@1", "pull@1", "train@1-1", "aggregate@2"],
        ["push@2", "pull@2", "train@2-2", "aggregate@2"],
    ]


def test_bulk_pulls_once_before_the_first_step_and_none_never() -> None:
    assert events(total_steps=4, aggregate_every=3, pull_every=1, exchange="bulk") == [
        ["push@0", "pull@0", "train@1-2", "aggregate@3"],
        ["train@3-4", "aggregate@4"],
    ]
    assert events(total_steps=4, aggregate_every=3, pull_every=1, exchange="none") == [
        ["train@1-2", "aggregate@3"],
        ["train@3-4", "aggregate@4"],
    ]


@given(
    total=st.integers(1, 60),
    every=st.integers(1, 20),
    pull=st.integers(1, 20),
    exchange=st.sampled_from(["explicit", "implicit", "none", "uniform", "kmeans", "bulk"]),
)
def test_every_step_is_trained_once_between_what_is_due(
    total: int, every: int, pull: int, exchange: str
) -> None:
    config = CFCLConfig(
        total_steps=total, aggregate_every=every, pull_every=pull, exchange=exchange
    )
    rounds = timeline(config)
    assert all([e.kind for e in r].index("aggregate") == len(r) - 1 for r in rounds)
    flat = [event for round_ in rounds for event in round_]
    trained = [e.step + n for e in flat if e.kind == "train" for n in range(e.steps)]
    assert trained == list(range(1, total + 1))
    due = [] if exchange in ("none", "bulk") else list(range(pull, total + 1, pull))
    assert [e.step for e in flat if e.kind == "pull"] == ([0] if exchange == "bulk" else due)
    averaged = [t for t in range(every, total + 1, every) if t > 1]
    assert [e.step for e in flat if e.kind == "aggregate"] == [*averaged, total]
    for number, event in enumerate(flat):
        if event.kind == "pull" and exchange == "implicit":  # the last global model's embeddings
            before = [e.kind for e in flat[:number]]
            assert "aggregate" not in before[before[::-1].index("push") * -1 - 1 :]


def test_what_an_exchange_is() -> None:
    implicit = {
        e
        for e in ("explicit", "implicit", "none", "uniform", "bulk", "kmeans")
        if CFCLConfig(exchange=e).sends_embeddings
    }
    assert implicit == {"implicit"}
    assert CFCLConfig(exchange="uniform", medium="embeddings").sends_embeddings
    assert not CFCLConfig(exchange="explicit", medium="embeddings").sends_embeddings
    assert CFCLConfig().reserve_groups == 10
    assert CFCLConfig(clusters=4).reserve_groups == 4
    assert CFCLConfig(reserve_clusters=7).reserve_groups == 7


@pytest.mark.parametrize("key", ["total_steps", "aggregate_every", "pull_every", "reserve_size"])
def test_none_of_them_is_zero(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}=0: must be at least 1"):
        CFCLConfig(**{key: 0})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"medium": "embeddings"},
            "method.medium=embeddings: exchange=explicit sends samples; use exchange=implicit, or "
            "a baseline.",
        ),
        (
            {"exchange": "bulk", "budget": 101},
            "method.budget=101: a device chooses among 100 candidates; raise method.approx_size, "
            "or lower the budget.",
        ),
        (
            {"exchange": "none", "proximity": True},
            "method.proximity=true: exchange=none pulls nothing; leave it out.",
        ),
        (
            {"budget": 0, "proximity": True},
            "method.proximity=true: budget=0 pulls nothing; leave it out.",
        ),
        (
            {"topology": "edges"},
            "method.topology=edges: it needs method.edges, such as [[0,1],[1,2]]; give them.",
        ),
        (
            {"edges": ((0, 1),)},
            "method.edges: topology=geometric draws its own; use topology=edges.",
        ),
        (
            {"topology": "ring", "degree": 2.0},
            "method.degree=2: topology=ring has its own; leave it out.",
        ),
    ],
)
def test_options_that_would_go_unheard_are_refused(changes: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_exchange(CFCLConfig(**changes))
    assert str(refusal.value) == sentence


def test_baselines_may_exchange_embeddings_and_none_any_budget() -> None:
    check_exchange(CFCLConfig(exchange="uniform", medium="embeddings"))
    check_exchange(CFCLConfig(exchange="none", budget=1000))
