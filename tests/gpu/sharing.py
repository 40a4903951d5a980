"""Images a second of eight clients that share one GPU: ResNet-18, alone and on several actors.

    python -m tests.gpu.sharing device=cuda scale=paper out=runs/gpu

A line of `sharing.csv` for each way; one that fails has the reason in place of its numbers. Actors,
each with its share of the GPU, need Ray.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.training_rate import rate
from tests.gpu.table_file import Line, reason, write_lines

FIELDS = ("processes", "views", "precision", "images_per_s", "first_round_s", "device", "error")
CLIENTS, EPOCHS = 8, 4
SIZES = {"paper": (2048, 512, "resnet18"), "smoke": (16, 16, "conv3")}
"""Scale to images of a client, batch and network."""
ALONE = (("natural", "bf16-mixed"), ("none", "bf16-mixed"), ("natural", "32-true"))
"""Views and precisions of one process; actors have the first."""
ACTORS = {"cuda": (2, 4, 8), "cpu": (2,)}


def ways(device: str) -> Iterator[tuple[Line, tuple[str, ...]]]:
    """What a line says of a way to train, and its keys."""
    for views, precision in ALONE:
        keys = (f"augmentation={views}", f"precision={precision}", "cluster=serial")
        yield {"processes": 1, "views": views, "precision": precision}, keys
    if importlib.util.find_spec("ray") is None:
        return
    views, precision = ALONE[0]
    for actors in ACTORS[device]:
        share = 1 / actors if device == "cuda" else 0
        keys = (f"augmentation={views}", f"precision={precision}", f"cluster.num_actors={actors}")
        line: Line = {"processes": actors, "views": views, "precision": precision}
        yield line, (*keys, f"cluster.gpus_per_client={share}")


def measured(device: str, scale: str, folder: Path) -> Iterator[Line]:
    """A line for each way."""
    each, batch, network = SIZES[scale]
    count = CLIENTS * each
    samples = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    path = folder / "shared.npz"
    np.savez(path, samples=samples)
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    common = ("experiment=fedsimclr", "data=npz", f"data.path={path}", "partition=iid")
    common += (f"partition.clients={CLIENTS}", "method.participation=1.0", "method.rounds=2")
    common += (f"method.epochs={EPOCHS}", f"method.batch_size={batch}", f"encoder={network}")
    common += ("executor=bare", f"accelerator={device}")
    for line, keys in ways(device):
        line["device"] = name
        try:
            found = rate(EPOCHS * count, *common, *keys)
            line["images_per_s"] = f"{found.images:.0f}"
            line["first_round_s"] = f"{found.first:.1f}"
        except Exception as error:  # noqa: BLE001 -- written down, and the others go on
            line["error"] = reason(error)
        yield line


if __name__ == "__main__":
    sys.exit(write_lines("sharing.csv", FIELDS, measured, sys.argv[1:]))
