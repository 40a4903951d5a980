"""Rounds a second of 100 small clients: one after another, vmapped, and on several actors.

    python -m tests.gpu.many_clients device=cuda scale=paper out=runs/gpu

A line of `many_clients.csv` for each way; one that fails has the reason in place of its numbers.
Actors, each with its share of one GPU, need Ray.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.training_rate import rate
from tests.gpu.table_file import Line, reason, write_lines

FIELDS = ("method", "way", "rounds_per_s", "images_per_s", "peak_mb", "device", "error")
METHODS = {
    "FedAvg": ("experiment=fedavg", "method.batch_size=20", "method.participation=1.0"),
    "SimCLR": ("experiment=fedsimclr", "method.batch_size=50", "method.participation=1.0"),
}
SIZES = {"paper": (100, 100), "smoke": (4, 20)}
"""Scale to clients and images of each."""
GROUPS = (10, 50, 100)
ACTORS = (2, 4, 8)


def ways(device: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of the ways to train, and their keys."""
    yield "one after another", ("executor=bare", "cluster=serial")
    yield "one after another, compiled", ("executor=bare", "cluster=serial", "compile=default")
    for size in GROUPS:
        yield (
            f"groups of {size}",
            ("executor=vmap", "cluster=serial", f"cluster.vmap_clients={size}"),
        )
    vmapped = ("executor=vmap", "cluster=serial", f"cluster.vmap_clients={GROUPS[-1]}")
    yield f"groups of {GROUPS[-1]}, bfloat16", (*vmapped, "precision=bf16-mixed")
    if importlib.util.find_spec("ray") is not None:
        for actors in ACTORS if device == "cuda" else (2,):
            share = f"cluster.gpus_per_client={1 / actors if device == 'cuda' else 0}"
            yield f"{actors} actors", ("executor=bare", f"cluster.num_actors={actors}", share)


def measured(device: str, scale: str, folder: Path) -> Iterator[Line]:
    """A line for each method and way."""
    clients, each = SIZES[scale]
    images, generator = clients * each, np.random.default_rng(0)
    path = folder / "small_clients.npz"
    samples = generator.integers(0, 256, (images, 1, 28, 28), dtype=np.uint8)
    np.savez(path, samples=samples, labels=generator.integers(0, 10, images))
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    common = ("data=npz", f"data.path={path}", "partition=iid", f"partition.clients={clients}")
    common += ("method.rounds=4", "method.epochs=1", "augmentation=digits", "encoder=conv3")
    for method, own in METHODS.items():
        for way, keys in ways(device):
            line: Line = {"method": method, "way": way, "device": name}
            try:
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                found = rate(images, *own, *common, f"accelerator={device}", *keys)
                line["rounds_per_s"] = f"{found.images / images:.4g}"
                line["images_per_s"] = f"{found.images:.4g}"
                if device == "cuda" and "actors" not in way:  # theirs is not this process's
                    line["peak_mb"] = torch.cuda.max_memory_allocated() >> 20
            except Exception as error:  # noqa: BLE001 -- written down, and the others go on
                line["error"] = reason(error)
            yield line


if __name__ == "__main__":
    sys.exit(write_lines("many_clients.csv", FIELDS, measured, sys.argv[1:]))
