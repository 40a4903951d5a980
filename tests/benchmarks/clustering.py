"""Clustering's own time: one thread and two, beside scikit-learn and FAISS at equal iterations."""

import statistics
import time

import faiss
import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from coterie.clustering.kmeans import kmeans
from coterie.clustering.lattice import on_lattice, sums_of_starts
from coterie.evaluation.neighbours import knn_accuracy

TITLE = "Clustering: seconds, and relative to one thread, scikit-learn and FAISS"
CASES = (
    *((60_000, 512, k) for k in (10, 100, 1000)),
    *((60_000, 1280, k) for k in (10, 100)),
    *((1_300_000, 512, k) for k in (10, 100)),
)
TURNS = 3
ITERATIONS, STARTS = 5, 2


def points(samples, features):
    """A hundred groups that overlap, in float32."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((samples, features), dtype=np.float32)
    x += draw.standard_normal((100, features), dtype=np.float32)[np.arange(samples) % 100]
    return x


def seconds(work, threads):
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    with threadpool_limits(threads):
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


def of_kmeans(x, k):
    """Coterie's k-means, scikit-learn's and FAISS's, each from k-means++."""

    def theirs():
        KMeans(k, n_init=STARTS, max_iter=ITERATIONS, tol=0, random_state=0).fit(x)

    def faisss():
        start = faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS
        options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(x)}
        options |= {"niter": ITERATIONS, "nredo": STARTS, "init_method": start}
        faiss.Kmeans(x.shape[1], k, seed=0, **options).train(x)

    def ours():
        kmeans(x, k, seed=0, iterations=ITERATIONS, restarts=STARTS)

    return ours, theirs, faisss


def of_lattice(x, k):
    """A client's round of Concord: the sums of five starts."""
    steps = on_lattice(torch.from_numpy(x[:, :64]).div_(8))
    starts = [steps[first : first + k] for first in range(5)]
    return (lambda: sums_of_starts(steps, starts),)


def of_neighbours(x, k):
    """kNN evaluation with 200 neighbours; a sixth of the samples is asked."""
    rows, labels = torch.from_numpy(x), torch.arange(len(x)) % k
    cut = len(x) // 6
    given = rows[cut:], labels[cut:], rows[:cut], labels[:cut]
    return (lambda: knn_accuracy(*given, classes=k),)


def row(name, works, turns):
    """Median seconds with two threads, and medians of the ratios over the turns."""
    ours, *others = works
    seen = [
        [seconds(ours, 1), seconds(ours, 2), *(seconds(other, 2) for other in others)]
        for _ in range(turns)
    ]
    middle = statistics.median
    cells = [f"{middle(turn[1] for turn in seen):.2f}"]
    cells.append(f"{middle(turn[0] / turn[1] for turn in seen):.2f}")
    cells += [
        f"{middle(turn[1] / turn[at] for turn in seen):.2f}" for at in range(2, 2 + len(others))
    ]
    cells += ["–"] * (2 - len(others))
    return f"| {name} | {' | '.join(cells)} |"


def table(cases=CASES, turns=TURNS):
    """Each case's times as a Markdown table; large ones are measured once."""
    lines = [
        "| work | two threads, s | against one thread | / scikit-learn | / FAISS |",
        "| --- | --- | --- | --- | --- |",
    ]
    for samples, features, k in cases:
        x = points(samples, features)
        often = turns if samples * features * k < 5 * 10**9 else 1
        lines.append(row(f"k-means, {samples:,} × {features}, k = {k:,}", of_kmeans(x, k), often))
    samples, features, k = cases[0]
    x = points(samples, features)
    lines.append(row(f"kNN evaluation, {samples:,} × {features}", of_neighbours(x, k), turns))
    lines.append(
        row(
            f"sums of Concord, {samples:,} × 64, 5 × 2,000",
            of_lattice(x, min(2000, samples)),
            turns,
        )
    )
    return "\n".join(lines)
