"""Private prototypes: what one sample changes, what is found without noise, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.contract import WeightedUpdate
from coterie.errors import RunError
from coterie.modules.concord import Concord
from coterie.modules.exact_sums import (
    COUNT,
    MOMENTS,
    PRODUCTS,
    PROJECTION,
    PROTOTYPES,
    SUMS,
    TOTAL,
    WARPED,
)
from coterie.modules.noisy_prototypes import NoisyPrototypes
from coterie.modules.sent_centroids import CENTROIDS
from coterie.networks.encoders import Raw
from coterie.networks.prototypes import LatticeProjection, Prototypes
from tests.builders.federation import tiny_task
from tests.builders.vectors import GROUPS, blobs, same_partition


def twice(samples):
    return 2 * samples


def back(samples):
    return -samples


WARPS = [(twice, back), (back, twice), (back, back)]


class Rows:
    """Samples that are their own representations."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def take(self, wanted):
        return self.values[wanted]


class OnRows(NoisyPrototypes):
    def _embedded(self, client, slots, samples=None):
        return client.data.values if samples is None else samples


def private(clip=25.0, features=30, clusters=GROUPS, components=8, **warps):
    task = replace(tiny_task(), shape=(features,), encoder=Raw(), clip=clip)
    config = Concord.Config(clusters=clusters, prototypes=20, neighbours=5)
    return OnRows(config, task, components, **warps)


def contribution(method, values, server):
    phase = method.next(server)
    client = SimpleNamespace(data=Rows(values), state=None)
    return phase, method.client(client, phase, server.slots).up


def step(method, server, values):
    phase, up = contribution(method, values, server)
    return method.server(server, phase, up, {})


def start(method):
    return method.init({}, 1)


def steps(up):
    (mean,) = up.values()
    parts = [mean.tensors[name].reshape(-1) for name in sorted(mean.tensors)]
    return torch.cat(parts) * 2**20


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-2, 1.0, 300.0]),
    st.sampled_from([0.01, 1.0, 7.3]),
    st.booleans(),
    st.integers(0, 2),
)
def test_one_sample_changes_the_sums_by_the_sensitivity_at_most(seed, size, clip, warped, rounds):
    values = size * torch.randn(12, 5, generator=torch.Generator().manual_seed(seed))
    method = private(clip, 5, 2, warps=WARPS if warped else (), ridge=0.3)
    server = start(method)
    for _ in range(rounds):
        server = step(method, server, values)
    phase, all_ = contribution(method, values, server)
    change = steps(all_) - steps(contribution(method, values[1:], server)[1])
    assert torch.equal(change.round(), change)
    assert sum(int(x) ** 2 for x in change) <= (phase.sensitivity * 2**20) ** 2


def test_without_noise_groups_are_found():
    samples, groups = blobs()
    values, method = torch.from_numpy(samples), private()
    server = start(method)
    while (method.next(server)) is not None:
        server = step(method, server, values)
    assert server.round == method.rounds
    projected = project(server, values)
    found = Prototypes(**server.slots[PROTOTYPES])(projected).argmax(dim=1)
    assert same_partition(found.numpy(), groups)


def project(server, values):
    return LatticeProjection(**server.slots[PROJECTION])(values.double())


def test_directions_keep_off_what_warps_change():
    """The widest axis is the one that a warp moves along; without warps it leads."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, 3, generator=generator) * torch.tensor([3.0, 2.0, 1.0])
    shift = torch.tensor([4.0, 0.0, 0.0])
    along = [(lambda x: x + shift, lambda x: x - shift)]

    def leading(warps):
        method = private(10.0, 3, 2, components=2, warps=warps, ridge=0.1)
        server = step(method, start(method), values)
        return int(server.slots[PROJECTION]["directions"][:, 0].abs().argmax())

    assert (leading(()), leading(along)) == (0, 1)


def test_noise_that_leaves_too_few_prototypes_is_told_in_the_last_round():
    method = private()
    server = step(method, start(method), torch.from_numpy(blobs()[0]))
    columns = torch.zeros(20, 9, dtype=torch.float64)
    columns[:3, -1] = 100.0
    means = {SUMS: WeightedUpdate(weight=1, tensors={SUMS: columns})}
    for _ in range(method.rounds - 2):
        server = method.server(server, method.next(server), means, {})
    assert PROTOTYPES not in server.slots
    with pytest.raises(RunError, match="Only 3 prototypes stand out from the noise, too few"):
        method.server(server, method.next(server), means, {})


def test_what_is_all_noise_gives_a_projection():
    method = private(1.0, 5, 2, warps=WARPS, ridge=0.3)
    generator = torch.Generator().manual_seed(0)
    server = start(method)
    noise = {
        name: 1e4 * torch.randn(value.shape, generator=generator, dtype=torch.float64).round()
        for name, value in server.slots[MOMENTS].items()
    }
    assert set(noise) == {COUNT, TOTAL, PRODUCTS, WARPED}
    means = {MOMENTS: WeightedUpdate(weight=1, tensors=noise)}
    server = method.server(server, method.next(server), means, {})
    assert server.slots[CENTROIDS][CENTROIDS].shape == (20, 5)
