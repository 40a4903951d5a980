"""Clustering on the device beside this machine's CPUs: seconds, and how many samples agree.

    python -m tests.gpu.clustering device=cuda scale=paper out=runs/gpu

A line of `clustering.csv` for each work and size; one that fails has the reason in place of its
numbers. FAISS searches on the GPU if it was built for GPUs (`make install FAISS=gpu`).
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import torch
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.clustering.lattice import on_lattice, sums_of_starts
from coterie.evaluation.neighbours import knn_accuracy
from tests.benchmarks.clustering import ITERATIONS, STARTS, points
from tests.gpu.table_file import Line, reason, write_lines

FIELDS = (
    *("work", "samples", "features", "k", "device_s", "cpu_s", "times_as_fast"),
    *("same", "faiss", "device", "error"),
)
SIZES = {
    "paper": (
        *((60_000, 512, k) for k in (10, 100, 1000)),
        *((60_000, 1280, k) for k in (10, 100)),
        (1_300_000, 512, 10),
    ),
    "smoke": ((600, 16, 10),),
}
"""Scale to samples, features and clusters or classes."""

Work = Callable[[Tensor, int], Any]


def of_kmeans(x: Tensor, k: int) -> Tensor:
    """Each sample's cluster."""
    found = kmeans(x, k, seed=0, iterations=ITERATIONS, restarts=STARTS)
    return found.assignments.cpu()


def of_neighbours(x: Tensor, k: int) -> float:
    """Accuracy of 200 neighbours; a sixth of the samples, 10,000 at most, is asked."""
    labels, cut = torch.arange(len(x), device=x.device) % k, min(10_000, len(x) // 6)
    return knn_accuracy(x[cut:], labels[cut:], x[:cut], labels[:cut], classes=k)


def of_lattice(x: Tensor, k: int) -> Tensor:
    """The sums of a client's round of Concord: 64 features, five starts of as many centroids."""
    steps = on_lattice((x[:, :64] / 8).cpu()).to(x.device)
    starts = [steps[first : first + k] for first in range(5)]
    return torch.cat(sums_of_starts(steps, starts)).cpu()


WORKS: dict[str, Work] = {
    "k-means": of_kmeans,
    "kNN evaluation": of_neighbours,
    "sums of Concord": of_lattice,
}


def seconds(work: Work, x: Tensor, k: int) -> tuple[float, Any]:
    """Seconds, and what the work has found."""
    begun = time.perf_counter()
    found = work(x, k)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun, found


def same(one: Any, other: Any) -> float:
    """Share of samples in the same cluster, or the difference of two accuracies from 1."""
    if isinstance(one, Tensor):
        return float((one == other).double().mean())
    return 1 - abs(one - other)


def measured(device: str, scale: str, folder: Path) -> Iterator[Line]:
    """A line for each work and size."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    built = "gpu" if hasattr(faiss, "StandardGpuResources") else "cpu"
    for samples, features, k in SIZES[scale]:
        x = torch.from_numpy(points(samples, features))
        for title, work in WORKS.items():
            line: Line = {"work": title, "samples": samples, "features": features, "k": k}
            line |= {"faiss": built, "device": name}
            try:
                there = x.to(device)
                seconds(work, there[: 20 * k], k)  # loads the libraries
                own, found = seconds(work, there, k)
                cpu, known = seconds(work, x, k)
                line |= {"device_s": f"{own:.3g}", "cpu_s": f"{cpu:.3g}"}
                line |= {"times_as_fast": f"{cpu / own:.3g}", "same": f"{same(found, known):.6f}"}
            except Exception as error:  # noqa: BLE001 -- written down, and the others go on
                line["error"] = reason(error)
            yield line


if __name__ == "__main__":
    sys.exit(write_lines("clustering.csv", FIELDS, measured, sys.argv[1:]))
