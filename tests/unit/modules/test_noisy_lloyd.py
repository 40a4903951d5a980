"""Private k-means: what one sample changes, where centroids end, and how clusters are refilled."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering.lattice import UNIT, clipped_rows
from coterie.errors import ConfigError, DataError
from coterie.modules.exact_sums import SUMS
from coterie.modules.kmeans import BEST, KMeans
from coterie.modules.noisy_lloyd import LLOYD, MEAN, NoisyLloyd
from coterie.modules.sent_centroids import CENTROIDS
from tests.builders.vectors import on_vectors


def points(seed, size, rows=5, features=3):
    return size * torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))


def sums(lloyd, values, centroids):
    return lloyd.sums(values, centroids)[SUMS].tensors[SUMS]


def private(values, clip, **keys):
    """A run by private k-means on two clients, whose sums have no noise."""
    parts = np.array_split(np.arange(len(values)), 2)
    return on_vectors(KMeans.Config(**keys), values.numpy(), parts, clip=clip)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-3, 1.0, 300.0]),
    st.sampled_from([0.01, 1.0, 7.3]),
    st.sampled_from([1, 4]),
)
def test_one_sample_changes_the_sums_by_the_sensitivity_at_most(seed, size, clip, clusters):
    lloyd, values = NoisyLloyd(clip, 3), points(seed, size)
    centroids = clipped_rows(points(seed + 1, size, rows=clusters), clip)
    change = sums(lloyd, values, centroids) - sums(lloyd, values[1:], centroids)
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
    ran = private(groups, 5.0, clusters=3, restarts=1, iterations=5)
    assert [task.phase.name for task in ran.spy.tasks[::2]] == [MEAN, *[LLOYD] * 5]
    found = ran.state.server.slots[CENTROIDS][BEST]
    assert found.argmax(dim=1).sort().values.tolist() == [0, 1, 2]


def test_a_cluster_of_noise_shares_the_largest_one():
    lloyd = NoisyLloyd(8.0, 2)
    weight = float(sums(lloyd, torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int32))[0, -1])
    counts = torch.tensor([100.0, 60.0, -3.0])
    totals = counts[:, None] * torch.tensor([[1.0, 2.0], [-5.0, 0.0], [700.0, 700.0]])
    columns = torch.cat([totals, counts[:, None] * weight], dim=1).double()
    found = lloyd.refilled(*lloyd.found(columns), np.random.default_rng(0))
    assert found[1].tolist() == pytest.approx([-5.0, 0.0], abs=1e-3)
    assert ((found[0] + found[2]) / 2).tolist() == pytest.approx([1.0, 2.0], abs=1e-3)
    assert float((found[0] - found[2]).norm()) == pytest.approx(0.5, abs=1e-3)


def test_the_share_of_noise_errs_least():
    """With σ² = R² + w², errors of sums (d σ²) and of numbers (R² σ²/w²) add up to the least."""
    for features in (2, 64, 784):
        used = NoisyLloyd(3.0, features).sensitivity
        weights = np.linspace(0.05, 3.0, 4000)
        errors = (9 + weights**2) * (features + 9 / weights**2)
        assert math.sqrt(used**2 - 9) == pytest.approx(weights[errors.argmin()], rel=0.01)


@pytest.mark.parametrize(
    ("clip", "restarts", "sentence"),
    [(1.0, 2, "method.restarts=2: under privacy.dp"), (513.0, 1, "privacy.dp.clip=513: exact")],
)
def test_what_it_cannot_do_is_refused(clip, restarts, sentence):
    with pytest.raises(ConfigError, match=sentence):
        private(points(0, 1.0), clip, clusters=3, restarts=restarts)
