"""Private k-means: what one sample changes, where centroids end, and how clusters are refilled."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering.lattice import UNIT, clipped_rows
from coterie.contract import Phase, ServerState, WeightedUpdate
from coterie.errors import ConfigError, DataError
from coterie.modules.exact_sums import SUMS
from coterie.modules.noisy_lloyd import LLOYD, MEAN, NoisyLloyd
from coterie.modules.sent_centroids import CENTROIDS

BEST = "best"


def points(seed, size, rows=5, features=3):
    return size * torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))


def sums(lloyd, values, name, centroids):
    phase = Phase(name=name, stage="clustering", round=1)
    return lloyd.client(values, phase, {CENTROIDS: {BEST: centroids}}, BEST).up[SUMS].tensors[SUMS]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-3, 1.0, 300.0]),
    st.sampled_from([0.01, 1.0, 7.3]),
    st.sampled_from([MEAN, LLOYD]),
)
def test_one_sample_changes_the_sums_by_the_sensitivity_at_most(seed, size, clip, name):
    lloyd, values = NoisyLloyd(clip, 4, 3, 1), points(seed, size)
    centroids = clipped_rows(points(seed + 1, size, rows=4), clip)
    change = sums(lloyd, values, name, centroids) - sums(lloyd, values[1:], name, centroids)
    assert (
        sum(int(x) ** 2 for x in (change * 2**20).reshape(-1)) <= (lloyd.sensitivity * 2**20) ** 2
    )
    assert torch.equal((change * 2**20).round(), change * 2**20)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 300.0]), st.floats(1e-3, 400.0))
def test_clipped_rows_are_no_longer_than_the_norm(seed, size, norm):
    values = points(seed, size, rows=20, features=7)
    found = clipped_rows(values, norm)
    limit = math.floor(norm * UNIT)
    assert all(sum(int(x) ** 2 for x in row) <= limit**2 for row in found)
    assert (found.abs() <= (values.double() * UNIT).abs()).all()
    short = values.double().norm(dim=1) * UNIT < limit
    assert ((found - values.double() * UNIT).abs()[short] < 1).all()


def test_what_is_not_finite_is_refused():
    with pytest.raises(DataError, match="not finite"):
        clipped_rows(torch.tensor([[1.0, math.nan]]), 1.0)


def test_without_noise_separate_groups_are_found():
    groups = torch.eye(3).repeat_interleave(50, dim=0) * 4 + points(0, 0.1, rows=150)
    lloyd = NoisyLloyd(5.0, 3, 3, 1)
    server = ServerState(slots={SUMS: lloyd.start()}, metadata={"seed": 1})
    for round_ in range(6):
        phase, centroids = lloyd.next(server), server.slots.get(CENTROIDS, {}).get(BEST)
        assert (phase.name, phase.round) == (LLOYD if round_ else MEAN, round_ + 1)
        given_ = {
            SUMS: WeightedUpdate(
                weight=1, tensors={SUMS: sums(lloyd, groups, phase.name, centroids)}
            )
        }
        found = lloyd.after(server, given_)
        server = server.advance(phase, {CENTROIDS: {BEST: found}})
    ends = found.double().div(UNIT).argmax(dim=1).sort().values
    assert ends.tolist() == [0, 1, 2]


def test_a_cluster_of_noise_shares_the_largest_one():
    lloyd = NoisyLloyd(8.0, 3, 2, 1)
    weight = float(sums(lloyd, torch.zeros(1, 2), MEAN, None)[0, -1])
    counts = torch.tensor([100.0, 60.0, -3.0])
    totals = counts[:, None] * torch.tensor([[1.0, 2.0], [-5.0, 0.0], [700.0, 700.0]])
    columns = torch.cat([totals, counts[:, None] * weight], dim=1).double()
    before = {CENTROIDS: {BEST: torch.zeros(3, 2, dtype=torch.int32)}}
    server = ServerState(slots=before, round=2, metadata={"seed": 0})
    found = (
        lloyd.after(server, {SUMS: WeightedUpdate(weight=1, tensors={SUMS: columns})}).double()
        / UNIT
    )
    assert found[1].tolist() == pytest.approx([-5.0, 0.0], abs=1e-3)
    assert ((found[0] + found[2]) / 2).tolist() == pytest.approx([1.0, 2.0], abs=1e-3)
    assert float((found[0] - found[2]).norm()) == pytest.approx(0.5, abs=1e-3)


def test_the_share_of_noise_errs_least():
    """With σ² = R² + w², errors of sums (d σ²) and of numbers (R² σ²/w²) add up to the least."""
    for features in (2, 64, 784):
        used = NoisyLloyd(3.0, 2, features, 1).sensitivity
        weights = np.linspace(0.05, 3.0, 4000)
        errors = (9 + weights**2) * (features + 9 / weights**2)
        assert math.sqrt(used**2 - 9) == pytest.approx(weights[errors.argmin()], rel=0.01)


@pytest.mark.parametrize(
    ("clip", "restarts", "sentence"),
    [(1.0, 2, "method.restarts=2: under privacy.dp"), (513.0, 1, "privacy.dp.clip=513: exact")],
)
def test_what_it_cannot_do_is_refused(clip, restarts, sentence):
    with pytest.raises(ConfigError, match=sentence):
        NoisyLloyd(clip, 3, 2, restarts)
