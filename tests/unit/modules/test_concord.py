"""Concord: its projection, prototypes and clusters, what leaves a client, and what it refuses."""

import math
from itertools import groupby

import numpy as np
import pytest
import torch
from scipy.linalg import eigh

from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.clustering.prototypes import PrototypeClusters, evenness, grouped_by_means
from coterie.contract import derive_seed
from coterie.errors import ConfigError
from coterie.modules.concord import Concord
from coterie.modules.exact_sums import discriminant, growth
from coterie.networks.encoders import ConvNet2
from coterie.networks.prototypes import LatticeProjection
from coterie.networks.quadratic import QuadraticClassifier, fit_sums, fitted, products_of
from tests.builders.layouts import layout, without_values
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition

FEW = {"prototypes": 40, "neighbours": 5}


def cut(counts: list[float], clusters: list[int]) -> PrototypeClusters:
    members = torch.eye(3, dtype=torch.float64)[clusters]
    return PrototypeClusters({"counts": torch.tensor(counts).double(), "members": members}, [])


def halves(samples: np.ndarray) -> list[np.ndarray]:
    return np.array_split(np.arange(len(samples)), 2)


def test_it_finds_groups_of_vectors() -> None:
    samples, groups = blobs()
    ran = on_vectors(Concord.Config(clusters=GROUPS, **FEW), samples, halves(samples))
    assert same_partition(clusters(ran, samples), groups)


def test_the_spectrum_gives_the_number_of_clusters_where_nobody_does() -> None:
    samples, groups = blobs()
    ran = on_vectors(Concord.Config(**FEW), samples, halves(samples))
    assert same_partition(clusters(ran, samples), groups)


def test_prototypes_stand_for_the_minimum_and_add_up() -> None:
    samples, _ = blobs()
    config = Concord.Config(clusters=2, minimum=4, **FEW)
    ran = on_vectors(config, samples, halves(samples))
    prototypes = ran.state.server.slots["prototypes"]
    assert prototypes["counts"].min() >= 4
    assert prototypes["counts"].sum() <= len(samples)
    lengths = off_lattice(prototypes["points"]).norm(dim=1)
    assert bool((lengths <= 1.001).all())
    assert torch.equal(prototypes["members"].sum(dim=1), torch.ones(len(lengths)).double())


def test_the_start_counts_whose_clusters_are_most_alike_in_size() -> None:
    even = cut([1, 1, 2, 1, 3, 4], [0, 0, 0, 1, 1, 2])
    assert evenness(even) == pytest.approx(math.log(3))
    assert evenness(cut([1, 1, 2, 1, 3, 4], [0, 0, 1, 1, 1, 2])) < 1.05
    assert evenness(cut([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0])) == 0.0
    samples = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)  # no groups at all
    found = {}
    for restarts in (1, 6):
        config = Concord.Config(clusters=5, restarts=restarts, **FEW)
        ran = on_vectors(config, samples, halves(samples))
        assert len(ran.state.server.slots["centroids"]) == restarts
        (labels,) = [task.slots for task in ran.spy.tasks if "means" in task.slots][:1]
        found[restarts] = evenness(PrototypeClusters(labels["prototypes"], []))
    assert found[6] > found[1]


def test_the_directions_are_the_generalised_eigenvectors() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(50, 6)) for _ in range(2))
    covariance, within = a.T @ a / 50, b.T @ b / 50
    given = torch.from_numpy(covariance)
    found = discriminant(given, 2, torch.from_numpy(within), ridge=0.3).numpy()
    noise = within + 0.3 * np.trace(within) / 6 * np.eye(6)
    values = np.sort(eigh(covariance, noise, eigvals_only=True))[::-1]
    for direction, value in zip(found.T, values, strict=False):
        assert np.allclose(covariance @ direction, value * noise @ direction)
        assert direction[np.abs(direction).argmax()] > 0
    plain = discriminant(given, 1).numpy()
    leading = np.linalg.eigh(covariance)[1][:, -1:]
    assert np.allclose(np.abs(plain), np.abs(leading))


def test_what_leaves_a_client_is_sums_and_its_samples_stay() -> None:
    samples, _ = blobs()
    ran = on_vectors(Concord.Config(clusters=3, **FEW), samples, halves(samples))
    for task in ran.spy.tasks:
        down = task.slots.keys() - {"encoder", "projection", "wide"}
        assert (down, set(task.outcome.up)) in (
            (set(), {"moments"}),
            ({"centroids"}, {"sums"}),
            ({"prototypes", "means"}, {"labels"}),
            ({"prototypes", "means", "own"}, {"own_sums"}),
        )
        assert all(mean.weight == 1 for mean in task.outcome.up.values())
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
    assert {tuple(kept) for kept in ran.kept.values()} == {("points", "wide")}


def test_where_nothing_lies_between_clusters_k_means_and_its_own_labels_decide() -> None:
    """A cloud that is longer one way: no gap, and a cut in the middle is as good as its weights."""
    cloud = np.random.default_rng(3).normal(size=(600, 12)).astype(np.float32)
    cloud[:, :3] *= 4
    ran = on_vectors(Concord.Config(clusters=3, refits=4, **FEW), cloud, halves(cloud))
    server = ran.state.server
    cut, means = server.metadata["margins"]
    assert means > cut
    assert [task.phase.name for task in ran.spy.tasks][-8:] == ["own_labels"] * 8
    assert server.round == 19
    starts = [len(task.outcome.up["own_sums"].tensors["counts"]) for task in ran.spy.tasks[-8:]]
    assert starts == [5] * 8  # they part after the last of four fits
    assert len(server.slots["own"]["weights"]) == 1
    found = clusters(ran, cloud)
    wide = LatticeProjection(**server.slots["wide"])(torch.from_numpy(cloud))
    values = QuadraticClassifier(server.slots["own"]["weights"][0], 12).values(on_lattice(wide))
    assert np.array_equal(found, values.argmax(dim=1).numpy())
    assert np.bincount(found, minlength=3).min() > 100
    assert layout(ran.spy.model_for(without_values(server), None)) == layout(
        ran.spy.model_for(server, None)
    )


def test_a_network_sees_each_picture_once_and_its_mirror_image() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (90, 1, 8, 8)).astype(np.uint8)
    config = Concord.Config(clusters=2, refits=1, restarts=2, **FEW)
    shape = {"shape": (1, 8, 8), "encoder": ConvNet2(features=16)}
    ran = on_vectors(config, pictures, halves(pictures), **shape)
    moments = ran.spy.tasks[0]
    assert set(moments.outcome.state) == {"features"}
    features = off_lattice(moments.outcome.state["features"])
    assert torch.allclose(features.norm(dim=1), torch.ones(45).double(), atol=2e-3)
    model = ran.spy.model_for(ran.state.server, None)
    given = torch.from_numpy(pictures)
    assert torch.equal(model(given).probabilities, model(given.flip(3)).probabilities)


def test_of_photographs_the_cut_and_ends_of_k_means_begin_with_own_labels() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (300, 1, 8, 8)).astype(np.uint8)
    config = Concord.Config(clusters=3, refits=8, restarts=2, **FEW)
    shape = {"shape": (1, 8, 8), "encoder": ConvNet2(features=16)}
    ran = on_vectors(config, pictures, halves(pictures), **shape)
    server, names = ran.state.server, [task.phase.name for task in ran.spy.tasks[::2]]
    assert [name for name, _ in groupby(names)] == ["moments", "prototypes", "own_labels"]
    assert names.count("own_labels") == 8
    assert server.round == ran.spy.rounds == len(names)
    partitions, prototypes = server.slots["means"]["members"], server.slots["prototypes"]
    points, counts = prototypes["points"], prototypes["counts"]
    assert torch.equal(partitions[0], prototypes["members"].argmax(dim=1))
    seed = derive_seed(server.whole("seed"), "means")
    assert torch.equal(partitions[1:], grouped_by_means(points, counts, 3, seed=seed, most=4))
    own = [task.outcome.up["own_sums"].tensors for task in ran.spy.tasks[-16:]]
    starts = [len(sums["counts"]) for sums in own]
    assert starts == [len(partitions)] * 12 + [1] * 4
    assert 3 <= len(partitions) <= 5


def test_centroids_double_three_times() -> None:
    assert growth(2000).stages == ((250, 3), (500, 2), (1000, 2), (2000, 6))
    assert growth(1).rounds == 13


def test_it_refuses_what_cannot_be_cut() -> None:
    samples, _ = blobs()
    with pytest.raises(ConfigError, match=r"method\.clusters=1: there is nothing to tell apart"):
        on_vectors(Concord.Config(clusters=1), samples, halves(samples))
    with pytest.raises(ConfigError, match=r"^method\.minimum: 120 samples make at most 1 prot"):
        on_vectors(Concord.Config(clusters=2, minimum=40, **FEW), samples, halves(samples))
    with pytest.raises(ConfigError, match=r"make at most 9 prototypes, but clusters need 10"):
        on_vectors(Concord.Config(clusters=10, minimum=5, **FEW), samples, halves(samples))
    four = samples[:4]
    with pytest.raises(ConfigError, match=r"^method\.minimum: 4 samples make at most 0 prototypes"):
        on_vectors(Concord.Config(clusters=2, **FEW), four, halves(four))


def test_the_classifier_decides_where_it_agrees_with_the_prototypes() -> None:
    samples, groups = blobs()
    ran = on_vectors(Concord.Config(clusters=GROUPS, **FEW), samples, halves(samples))
    server = ran.state.server
    assert server.metadata["agreement"] == 1.0
    weights = server.slots["classifier"]["weights"]
    assert weights.shape[1] == GROUPS
    assert same_partition(clusters(ran, samples), groups)


def test_rings_are_left_to_the_prototypes() -> None:
    """Clusters along a circle, in turn 0, 1, 0, 1, …: no quadric follows them."""
    angles = np.arange(2400) * 2 * np.pi / 2400
    points = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    labels = torch.from_numpy((np.arange(2400) // 200) % 2)
    sums = fit_sums(on_lattice(points), [labels], 2, products_of(2, 2400))
    found = QuadraticClassifier(fitted(*sums), 2)(points).argmax(dim=1)
    assert float((found == labels).double().mean()) < 0.9
