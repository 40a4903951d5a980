"""Images a second of local training, views and all, by method, network and precision.

    python -m tests.gpu.throughput device=cuda scale=paper out=runs/gpu

A line of `throughput.csv` for each; one that fails has the reason in place of its numbers.
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.training_rate import rate
from tests.gpu.table_file import Line, reason, write_lines

FIELDS = ("method", "network", "precision", "batch", "images_per_s", "peak_mb", "device", "error")
EPOCHS = 4
"""Of a round, so that what a round takes besides counts little."""
METHODS = {
    "SimCLR": ("experiment=simclr", "method.rounds=2", f"method.epochs={EPOCHS}"),
    "BYOL": ("experiment=byol", "method.rounds=2", f"method.epochs={EPOCHS}"),
    "FedMCC": (
        "experiment=fedmcc",
        "method.clusters=10",
        "method.representation_rounds=2",
        f"method.representation_epochs={EPOCHS}",
        "method.clustering_rounds=1",
        f"method.clustering_epochs={EPOCHS}",
    ),
}
NETWORKS = {"conv3": "encoder=conv3", "ResNet-18": "encoder=resnet18"}
SIZES = {"paper": (16_384, 512), "smoke": (16, 16)}
"""Scale to images and batch."""


def measured(device: str, scale: str, folder: Path) -> Iterator[Line]:
    """A line for each combination."""
    images, batch = SIZES[scale]
    samples = np.random.default_rng(0).integers(0, 256, (images, 3, 32, 32), dtype=np.uint8)
    path = folder / "random.npz"
    np.savez(path, samples=samples)
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    common = ("data=npz", f"data.path={path}", "partition=iid", "partition.clients=1")
    common += ("augmentation=natural", "cluster=serial", "executor=bare", f"accelerator={device}")
    for method, network, precision in product(METHODS, NETWORKS, ("32-true", "bf16-mixed")):
        line: Line = {"method": method, "network": network, "precision": precision}
        line |= {"batch": batch, "device": name}
        own = (NETWORKS[network], f"precision={precision}", f"method.batch_size={batch}")
        try:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            found = rate(EPOCHS * images, *METHODS[method], *common, *own).images
            line["images_per_s"] = f"{found:.4g}"
            if device == "cuda":
                line["peak_mb"] = torch.cuda.max_memory_allocated() >> 20
        except Exception as error:  # noqa: BLE001 -- written down, and the others go on
            line["error"] = reason(error)
        yield line


if __name__ == "__main__":
    sys.exit(write_lines("throughput.csv", FIELDS, measured, sys.argv[1:]))
