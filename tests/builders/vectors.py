"""Groups of vectors that are far apart, runs of one-shot methods on them, and what these find."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.networks.encoders import Raw
from tests.builders.federation import Federated, federate, tiny_workload

GROUPS, EACH = 6, 20


def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Six well parted groups of vectors, and which group each is of."""
    noise = np.random.default_rng(0).normal(size=(GROUPS * EACH, 30))
    groups = np.repeat(np.arange(GROUPS), EACH)
    return (20 * np.eye(30)[groups] + noise).astype(np.float32), groups


def on_vectors(
    config: Any, samples: np.ndarray, parts: list[np.ndarray], **changes: Any
) -> Federated:
    """A run on vectors as they are, in float64; the task may have changes."""
    given = tiny_workload(config)
    kept = {"shape": samples.shape[1:], "encoder": Raw(), "classes": GROUPS, **changes}
    task = replace(given.task, **kept)
    return federate(replace(given, task=task, samples={"train": samples}, parts=parts))


def clusters(ran: Federated, samples: np.ndarray) -> np.ndarray:
    model = ran.spy.model_for(ran.state.server, None)
    probabilities = model(torch.from_numpy(samples)).probabilities
    assert probabilities is not None
    return probabilities.argmax(dim=1).numpy()


def same_partition(found: np.ndarray, groups: np.ndarray) -> bool:
    pairs = set(zip(found.tolist(), groups.tolist(), strict=True))
    return len(pairs) == len(set(found.tolist())) == len(set(groups.tolist()))


def slow_farthest(points: list[list[float]], count: int, chosen: list[int]) -> list[int]:
    while len(chosen) < count:
        away = [min(np.linalg.norm(np.subtract(p, points[c])) for c in chosen) for p in points]
        chosen = [*chosen, int(np.argmax(away))]
    return chosen
