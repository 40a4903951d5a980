from threading import Barrier

import faiss
import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.clustering import blocks
from coterie.clustering import kmeans as module
from coterie.clustering.contingency import contingency
from coterie.clustering.kmeans import KMeansResult, counted_means, kmeans, nearest_centroids
from coterie.errors import DataError
from coterie.evaluation.clustering_metrics import clustering_scores


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def blobs():
    x, _ = make_blobs(1500, 8, centers=12, cluster_std=2.5, random_state=1)
    return x.astype(np.float32)


def inertia(x, centroids):
    """Σ of each point's squared distance to its nearest centroid, in float64."""
    difference = np.asarray(x, np.float64)[:, None] - np.asarray(centroids, np.float64)[None]
    return (difference**2).sum(-1).min(1).sum()


def test_blobs_as_well_as_scikit_learn(blobs):
    theirs = KMeans(12, n_init=10, random_state=0).fit(blobs).inertia_
    assert kmeans(blobs, 12, seed=0).inertia == pytest.approx(theirs, rel=0.01)


def test_digits_as_well_as_scikit_learn(digits):
    x, y = digits
    theirs = KMeans(10, n_init=10, random_state=0).fit(x).inertia_
    assert kmeans(x, 10, seed=0).inertia == pytest.approx(theirs, rel=0.01)
    found = kmeans(x, 10, seed=0, restarts=40)
    assert found.inertia == pytest.approx(theirs, rel=0.0005)
    scores = clustering_scores(contingency(found.assignments.numpy(), y, 10, 10))
    assert scores["acc"] == pytest.approx(0.79, abs=0.02)
    assert scores["nmi"] == pytest.approx(0.74, abs=0.02)


@pytest.mark.parametrize("factor", [2.0**-140, 1e-30, 1e-13, 1e25, 2.0**126])
def test_cosines_do_not_depend_on_lengths(factor):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)).clamp(-1.9, 1.9)
    x = (x * 64).round() / 64  # nothing of it is lost when it is tiny
    expected = kmeans(x, 3, seed=0, spherical=True)
    found = kmeans(x * factor, 3, seed=0, spherical=True)
    assert torch.equal(found.assignments, expected.assignments)
    torch.testing.assert_close(found.centroids, expected.centroids)
    near = nearest_centroids(x * factor, expected.centroids * factor, "cosine")
    assert torch.equal(near, expected.assignments)


def test_lengths_that_are_not_ordinary_leave_the_bits_of_the_others_alone():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    mixed = torch.cat([x, torch.zeros(1, 4), x[:1] * 1e30])
    units = module._unit(mixed)
    assert torch.equal(units[:40], torch.nn.functional.normalize(x, dim=1))
    assert torch.equal(units[40], torch.zeros(4))
    torch.testing.assert_close(units[41], units[0])


def test_squares_beyond_float32_and_no_features_are_refused():
    x = torch.ones(5, 2)
    for points, centroids, name in ((x * 1e25, x, "x"), (x, x * 1e25, "centroids")):
        with pytest.raises(DataError, match=f"5 of 5 rows of {name} have a length of up to"):
            nearest_centroids(points, centroids)
    with pytest.raises(DataError, match=r"x of shape \(5, 0\): give vectors"):
        kmeans(torch.ones(5, 0), 2, seed=0)


def test_the_result_is_a_fixed_point_and_its_inertia_is_true(digits):
    x, _ = digits
    found = kmeans(x, 10, seed=0, iterations=300)
    assert found.centroids.dtype == torch.float32
    assert found.assignments.dtype == torch.int64
    means = np.stack([x[found.assignments.numpy() == c].mean(0) for c in range(10)])
    np.testing.assert_allclose(found.centroids.numpy(), means, atol=1e-3)
    assert found.inertia == pytest.approx(inertia(x, found.centroids), rel=1e-6)
    assert torch.equal(found.assignments, nearest_centroids(x, found.centroids))


def test_same_seed_same_bits_whatever_the_threads_and_the_input_type(blobs):
    threads = torch.get_num_threads()
    first = kmeans(blobs, 12, seed=3, restarts=2)
    try:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(2)
        again = kmeans(torch.from_numpy(blobs), 12, seed=3, restarts=2)
        assert faiss.omp_get_max_threads() == 2  # put back as it was
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(first.centroids, again.centroids)
    assert torch.equal(first.assignments, again.assignments)
    assert first.inertia == again.inertia


def test_each_start_runs_on_one_thread_and_starts_side_by_side(blobs, monkeypatch):
    together, seen = Barrier(2, timeout=60), []
    original = faiss.Kmeans.train

    def train(self, *args, **kwargs):
        together.wait()
        seen.append(faiss.omp_get_max_threads())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(faiss.Kmeans, "train", train)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    faiss.omp_set_num_threads(2)
    kmeans(blobs, 3, seed=0, restarts=2)
    assert seen == [1, 1]


def test_near_copies_of_a_centroid_are_told_apart_and_equal_ones_go_to_the_first():
    draw = np.random.default_rng(0)
    one = draw.normal(size=300).astype(np.float32) * 1000
    step = np.zeros(300, np.float32)
    step[7] = np.spacing(one[7])
    centroids = np.stack([one + step, one, one, one + 1, one + 1])
    points = np.repeat([one, one + step, one + 1], 700, axis=0)
    expected = np.repeat([1, 0, 3], 700)
    np.testing.assert_array_equal(nearest_centroids(points, centroids).numpy(), expected)


def test_seeds_and_restarts_matter(blobs):
    one = [kmeans(blobs, 12, seed=seed, restarts=1).inertia for seed in range(6)]
    assert len(set(one)) > 1
    for seed in range(6):
        assert kmeans(blobs, 12, seed=seed, restarts=8).inertia <= one[seed]


def test_no_point_is_left_out():
    # Without max_points_per_centroid FAISS would see 256 of these 4,000 points: not the far one.
    x = np.random.default_rng(0).normal(size=(4000, 2)).astype(np.float32)
    x[-1] = 1e5
    mean = kmeans(x, 1, seed=0, restarts=1).centroids[0].numpy()
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), rtol=1e-4)


def test_nothing_is_written_to_the_terminal(capfd):
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    kmeans(x, 25, seed=0)
    kmeans(np.tile(x, (300, 1)), 2, seed=0, restarts=1)
    assert capfd.readouterr() == ("", "")


def test_weights_stand_for_copies(blobs):
    x = blobs[:400]
    copies = np.random.default_rng(0).integers(0, 4, len(x))
    start = x[np.flatnonzero(copies)[:5]]
    weighted = kmeans(x, 5, seed=0, weights=copies.astype(np.float32), init=start)
    copied = kmeans(np.repeat(x, copies, axis=0), 5, seed=0, init=start)
    torch.testing.assert_close(weighted.centroids, copied.centroids, rtol=1e-3, atol=1e-3)
    assert weighted.inertia == pytest.approx(copied.inertia, rel=1e-5)


def test_weighted_restarts_are_compared_by_weighted_inertia(blobs):
    weights = np.random.default_rng(1).uniform(0.1, 5, len(blobs)).astype(np.float32)
    theirs = KMeans(12, n_init=20, random_state=0).fit(blobs, sample_weight=weights).inertia_
    found = kmeans(blobs, 12, seed=0, weights=weights, restarts=20)
    best = min(kmeans(blobs, 12, seed=s, weights=weights, restarts=1).inertia for s in range(5))
    assert found.inertia == pytest.approx(theirs, rel=0.01)
    assert found.inertia <= best
    squared = (blobs - found.centroids[found.assignments].numpy()).astype(np.float64) ** 2
    assert found.inertia == pytest.approx((squared.sum(1) * weights).sum(), rel=1e-6)


@pytest.mark.timeout(20)
def test_tiny_weights_with_duplicates_reach_faiss_with_mean_one(monkeypatch):
    means = []
    original = faiss.Kmeans.train

    def train(self, x, weights, init_centroids):
        means.append(weights.mean())
        return original(self, x, weights=weights, init_centroids=init_centroids)

    monkeypatch.setattr(faiss.Kmeans, "train", train)
    x = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    found = kmeans(x, 5, seed=0, weights=np.full(30, 1e-4, np.float32))
    assert means == pytest.approx([1.0] * 10)
    assert found.inertia == pytest.approx(0.0, abs=1e-8)


def test_a_point_without_weight_gets_a_cluster_but_moves_none():
    x = np.array([[0.0], [1.0], [10.0], [11.0], [1000.0]], np.float32)
    found = kmeans(x, 2, seed=0, weights=np.array([1, 1, 1, 1, 0], np.float32))
    assert sorted(found.centroids.ravel().tolist()) == [0.5, 10.5]
    assert found.assignments[4] == found.assignments[3]


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("copies", [np.ones((20, 4)), np.zeros((20, 4)), np.eye(4).repeat(5, 0)])
def test_fewer_distinct_points_than_clusters(copies, spherical):
    x = copies.astype(np.float32)
    found = kmeans(x, 7, seed=0, spherical=spherical)
    assert found.centroids.shape == (7, 4)
    assert torch.isfinite(found.centroids).all()
    assert found.inertia <= 20 * 4 * 2 / 1024**2  # moved by 1/1024 of a coordinate at most, twice


def test_empty_clusters_are_refilled():
    x, _ = make_blobs(300, 2, centers=[[0, 0], [20, 0], [40, 0]], cluster_std=0.5, random_state=0)
    start = np.array([[10, 0], [1000, 1000], [1001, 1000]], np.float32)
    found = kmeans(x.astype(np.float32), 3, seed=0, init=start)
    assert found.assignments.bincount(minlength=3).tolist().count(0) == 0
    assert found.inertia < 0.5 * inertia(x, start)


def test_init_decides_the_result(blobs):
    start = kmeans(blobs, 12, seed=0).centroids
    order = torch.tensor([5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6])
    found = kmeans(blobs, 12, seed=9, init=start[order])
    torch.testing.assert_close(found.centroids, start[order], rtol=1e-3, atol=1e-3)
    one = kmeans(blobs, 12, seed=9, init=blobs[:12], iterations=1)
    nearest = nearest_centroids(blobs, blobs[:12]).numpy()
    means = np.stack([blobs[nearest == c].mean(0) for c in range(12)])
    np.testing.assert_allclose(one.centroids.numpy(), means, rtol=1e-4, atol=1e-4)


def test_as_many_clusters_as_points():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    found = kmeans(x, 6, seed=0)
    np.testing.assert_array_equal(found.centroids.numpy(), x)
    assert (found.assignments.tolist(), found.inertia) == (list(range(6)), 0.0)


def test_spherical_centroids_are_unit_means_of_directions(digits):
    x, _ = digits
    found = kmeans(x, 10, seed=0, spherical=True, iterations=300)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    sums = np.stack([unit[found.assignments.numpy() == c].sum(0) for c in range(10)])
    expected = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(found.centroids.numpy(), expected, atol=1e-4)
    cosine = (unit @ found.centroids.numpy().T).max(1)
    assert found.inertia == pytest.approx(2 * (1 - cosine.astype(np.float64)).sum(), rel=1e-4)
    lengths = np.linspace(0.5, 3, len(x), dtype=np.float32)[:, None]
    again = kmeans(x * lengths, 10, seed=0, spherical=True, iterations=300)
    assert again.inertia == pytest.approx(found.inertia, rel=0.01)


def test_by_cosine_long_rows_are_as_good_as_short_ones(digits):
    x = digits[0][:100]
    found = kmeans(x * np.float32(1e17), 5, seed=0, spherical=True)  # norms of about 5e18
    assert torch.equal(found.assignments, kmeans(x, 5, seed=0, spherical=True).assignments)
    rows = np.array([[1e19, 0], [0, 1e19]])
    assert kmeans(rows, 2, seed=0, spherical=True).centroids.tolist() == [[1, 0], [0, 1]]


def test_the_index_moves_to_the_points_gpu_where_faiss_has_one(monkeypatch):
    calls = []
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: "resources", raising=False)
    monkeypatch.setattr(
        faiss, "index_cpu_to_gpu", lambda *given: calls.append(given) or "gpu", raising=False
    )
    assert module.flat_index(4, False, torch.device("cuda", 3)) == "gpu"
    assert calls[0][:2] == ("resources", 3)
    assert isinstance(module.flat_index(4, True, torch.device("cpu")), faiss.IndexFlatIP)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 5}, "k=5 clusters for 4 points"),
        ({"k": 0}, "k=0"),
        ({"restarts": 0}, "restarts=0"),
        ({"x": np.array([[0.0], [np.nan], [1.0], [np.inf]])}, "2 of 4 rows of x are not finite"),
        (
            {"x": np.array([[0.0], [9e18], [1e19], [1e20]])},
            "2 of 4 rows of x have a length of up to 1e.20",
        ),
        ({"init": np.array([[0.0], [-1e20]])}, "1 of 2 rows of init have a length of up to"),
        ({"x": np.zeros(4)}, r"x of shape \(4,\)"),
        ({"weights": np.array([1.0, -1, 1, 1])}, "give 4 finite non-negative numbers"),
        ({"weights": np.array([1.0, 0, 0, 0])}, "k=2 clusters for 1 points of non-zero weight"),
        ({"init": np.zeros((3, 1))}, r"init of shape \(3, 1\): give \(2, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given = {"x": np.arange(4.0)[:, None], "k": 2, "seed": 0}
    with pytest.raises(DataError, match=message):
        kmeans(**{**given, **change})


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_assign_is_the_slow_search(metric, monkeypatch):
    x = load_digits().data.astype(np.float32)
    centroids = x[::150] + 1
    if metric == "cosine":
        unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, centroids)]
        expected = (unit[0] @ unit[1].T).argmax(1)
    else:
        expected = ((x[:, None] - centroids[None]) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(nearest_centroids(x, centroids, metric).numpy(), expected)
    monkeypatch.setattr(blocks, "BLOCK", 100 * 64)
    np.testing.assert_array_equal(nearest_centroids(x, centroids, metric).numpy(), expected)
    euclidean = nearest_centroids(x, centroids, "euclidean").numpy()
    assert (metric == "euclidean") == bool((euclidean == expected).all())


def test_assign_is_exact_far_from_the_origin():
    x = torch.tensor([[10000.0, 0.01], [10000.0, 0.99]])
    assert nearest_centroids(x, torch.tensor([[10000.0, 0.0], [10000.0, 1.0]])).tolist() == [0, 1]


def test_assign_refuses_what_does_not_fit():
    with pytest.raises(DataError, match="metric=manhattan"):
        nearest_centroids(np.zeros((2, 2)), np.zeros((2, 2)), "manhattan")
    with pytest.raises(DataError, match=r"points \(2, 2\) and centroids \(2, 3\)"):
        nearest_centroids(np.zeros((2, 2)), np.zeros((2, 3)))


class Largest(TorchDispatchMode):
    """Watches how many values the largest tensor has that is made."""

    def __init__(self):
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.values = max(self.values, out.numel())
        return out


def drawn(rows, features):
    draw = np.random.default_rng(rows)
    points = torch.from_numpy(draw.normal(size=(rows, features)).astype(np.float32))
    return points, points[:3].clone(), torch.from_numpy(draw.random(rows))


@pytest.mark.parametrize("shape", [(1000, 7), (101, 64), (99, 200), (5, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_have_the_bits_of_all_rows_at_once(shape, weighted, monkeypatch):
    points, centroids, weights = drawn(*shape)
    monkeypatch.setattr(blocks, "BLOCK", 100 * shape[1])
    found = module.result_of(points, centroids, weights if weighted else None)
    squared = (points - centroids[found.assignments]).double().square().sum(dim=1)
    whole = squared * weights if weighted else squared
    assert found.inertia == float(whole.numpy().sum())


def test_no_copy_of_the_data_is_made(monkeypatch):
    points, centroids, weights = drawn(1000, 50)
    monkeypatch.setattr(blocks, "BLOCK", 100 * 50)
    with Largest() as largest:
        module.result_of(points, centroids, weights)
    assert largest.values <= 100 * 50


def test_counted_means_are_those_of_the_points_that_are_counted():
    generator = torch.Generator().manual_seed(0)
    points = (torch.randn(200, 2, generator=generator) + 1e6).float()
    found = kmeans(points, 30, seed=1, restarts=1)
    means, counts = counted_means(points, found)
    assert counts.sum() == 200
    for cluster in range(30):
        own = points[found.assignments == cluster].double()
        assert len(own) == counts[cluster]
        if len(own):
            assert torch.equal(means[cluster], own.mean(dim=0).float())
    # FAISS assigns in float32, which cannot tell such points apart: its centroids are other means.
    assert not torch.allclose(means, found.centroids, rtol=0, atol=1e-2)


def test_an_empty_cluster_keeps_its_centroid():
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    found = KMeansResult(
        centroids=torch.tensor([[0.5, 0.5], [7.0, 7.0]]),
        assignments=torch.tensor([0, 0, 0]),
        inertia=0.0,
    )
    means, counts = counted_means(points, found)
    assert counts.tolist() == [3, 0]
    assert torch.equal(means, torch.tensor([[1 / 3, 1 / 3], [7.0, 7.0]]))
