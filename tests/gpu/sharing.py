"""Images a second of eight clients that share one GPU: ResNet-18, alone and on several actors.

    python -m tests.gpu.sharing device=cuda scale=paper out=runs/gpu

A line of `sharing.csv` for each way; one that fails has the reason in place of its numbers. Actors,
each with its share of the GPU, need Ray. The bare loop trains the same networks on the same views
without Coterie's engine; lightly, where it is installed, trains one client of all images with its
own views, which processors draw.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from coterie.commands.compose import compose
from tests.benchmarks.lightly_training import PEER, measure
from tests.benchmarks.training_rate import rate
from tests.gpu.bare_simclr import EPOCHS, bare_rate
from tests.gpu.table_file import Line, reason, write_lines

FIELDS = (
    "way",
    "processes",
    "views",
    "precision",
    "images_per_s",
    "first_round_s",
    "device",
    "error",
)
CLIENTS = 8
SIZES = {"paper": (2048, 512, "resnet18"), "smoke": (16, 16, "conv3")}
"""Scale to images of a client, batch and network."""
ALONE = (("natural", "bf16-mixed"), ("none", "bf16-mixed"), ("natural", "32-true"))
"""Views and precisions of one process; the other ways have the first."""
BARE = "bare loop"
OTHER = {
    BARE: (),
    "compiled": ("executor=bare", "compile=default"),
    "vmapped clients": ("executor=vmap", f"cluster.vmap_clients={CLIENTS}"),
}
"""Ways of one process to their keys."""
ACTORS = {"cuda": (2, 4, 8), "cpu": (2,)}


def ways(device: str) -> Iterator[tuple[Line, tuple[str, ...]]]:
    """What a line says of a way to train, and its keys."""
    for views, precision in ALONE:
        keys = (f"augmentation={views}", f"precision={precision}", "cluster=serial")
        yield _line("plain", 1, views, precision), ("executor=bare", *keys)
    views, precision = ALONE[0]
    drawn = (f"augmentation={views}", f"precision={precision}")
    for way, keys in OTHER.items():
        yield _line(way, 1, views, precision), (*drawn, "cluster=serial", *keys)
    if importlib.util.find_spec("ray") is None:
        return
    for actors in ACTORS[device]:
        share = 1 / actors if device == "cuda" else 0
        keys = ("executor=bare", f"cluster.num_actors={actors}", f"cluster.gpus_per_client={share}")
        yield _line("actors", actors, views, precision), (*drawn, *keys)


def _line(way: str, processes: int, views: str, precision: str) -> Line:
    return {"way": way, "processes": processes, "views": views, "precision": precision}


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
    common += (f"accelerator={device}",)
    for line, keys in ways(device):
        line["device"] = name
        try:
            if line["way"] == BARE:
                found = bare_rate(compose(*common, *keys), samples, CLIENTS, batch)
            else:
                found = rate(EPOCHS * count, *common, *keys)
            line["images_per_s"] = f"{found.images:.0f}"
            line["first_round_s"] = f"{found.first:.1f}"
        except Exception as error:  # noqa: BLE001 -- written down, and the others go on
            line["error"] = reason(error)
        yield line
    if importlib.util.find_spec("lightly") is not None:
        yield _lightly(device, network, batch, samples, folder) | {"device": name}


def _lightly(device: str, network: str, batch: int, samples: np.ndarray, folder: Path) -> Line:
    """The line of lightly's SimCLR, with as many loading processes as the machine has CPUs."""
    line, path = _line("lightly", 1, "lightly", ALONE[0][1]), folder / "pictures.npz"
    np.savez(path, pictures=np.ascontiguousarray(samples.transpose(0, 2, 3, 1)))
    options = {"method": "simclr", "encoder": network, "precision": line["precision"]}
    options |= {"accelerator": device, "batch": batch, "channels_last": True}
    options |= {"threads": torch.get_num_threads(), "workers": os.cpu_count()}
    try:
        line["images_per_s"] = f"{measure(sys.executable, PEER, path, json.dumps(options)):.0f}"
    except Exception as error:  # noqa: BLE001 -- written down
        line["error"] = reason(error)
    return line


if __name__ == "__main__":
    sys.exit(write_lines("sharing.csv", FIELDS, measured, sys.argv[1:]))
