"""The device that a process computes on, and its numerical precision."""

import os
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from coterie.config.schema import RunConfig
from coterie.errors import ConfigError

Accelerator = Literal["auto", "cpu", "cuda"]


def device_of(accelerator: Accelerator, gpus: float | None = None) -> torch.device:
    """Return this process's device: a GPU if it has one and may use it.

    Ray does not hide GPUs from an actor that has reserved none, so the reservation decides. On a
    GPU, float32 then means float32, also in convolutions (no TF32), and cuBLAS has the fixed
    workspace without which it is not deterministic.

    Args:
        accelerator: `cpu` ignores GPUs.
        gpus: GPUs that this actor has reserved; None in a process that is not an actor.
    """
    if accelerator == "cpu" or gpus == 0 or not torch.cuda.is_available():
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")


def client_device(config: RunConfig) -> torch.device:
    """Return the device of a process that runs clients."""
    cluster = config.cluster
    gpus = cluster.gpus_per_client if cluster.backend == "ray" else None
    return device_of(config.accelerator, gpus)


@cache
def device_name(device: torch.device) -> str:
    """Return the name of this process's GPU, or of the processor with its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names) or 1} cores of {names[0] if names else 'an unnamed processor'}"


def check_device(accelerator: Accelerator, device: torch.device) -> None:
    """Raise a ConfigError if a process lacks the device that the config asks for."""
    if accelerator == "cuda" and device.type != "cuda":
        raise ConfigError("accelerator=cuda: there is no CUDA device here; use accelerator=cpu.")
