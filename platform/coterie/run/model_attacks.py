"""Membership-inference attacks on a run's model: its training samples against held-out ones."""

import csv
import io
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coterie.config.plain_files import read_bytes
from coterie.config.schema import RunConfig
from coterie.contract.clusterer import Clusterer, Prediction
from coterie.contract.data import Indices, Samples
from coterie.contract.samples import picked
from coterie.contract.seeds import derive_seed
from coterie.errors import DataError
from coterie.evaluation.membership import (
    Membership,
    centroid_scores,
    loss_scores,
    membership,
    view_scores,
)
from coterie.evaluation.sampling import fixed_sample
from coterie.execution.device import device_of
from coterie.execution.node_local_data import is_node_local
from coterie.execution.predictor import join
from coterie.models.loading import load_model
from coterie.models.saved_model import CHECKPOINT
from coterie.run.setup import assemble
from coterie.tracking.run_directory import RunDirectory

FEWEST = 50
"""The fewest members, and other samples, for an attack."""
_ROWS = 256
"""Samples that pass the model at a time."""


@dataclass(frozen=True)
class _Side:
    """Members or non-members of the training data, with classes if known."""

    samples: Samples
    labels: NDArray[np.int64] | None

    @classmethod
    def drawn(cls, samples: Samples, labels: NDArray[np.int64] | None, rows: Indices) -> "_Side":
        return cls(picked(samples, rows), None if labels is None else labels[rows])


def why_no_attack(config: RunConfig, directory: RunDirectory) -> str:
    """Return why a run's model cannot be attacked, as a sentence; "" if it can."""
    if is_node_local(config):
        return "The data stays with its clients, so the model is not attacked here."
    if (directory.model / CHECKPOINT).is_file():
        return "The run trained a LightningModule of yours, which is not attacked."
    if not directory.model.is_dir():
        return "The run has left no model to attack."
    return ""


class ModelAttacks:
    """Attacks on the saved model of a run.

    Args:
        samples: The most samples to attack on either side.

    Raises:
        DataError: If the data or the model cannot be read.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory, samples: int) -> None:
        self._config = config
        self._device = device_of(config.accelerator)
        self._assembly = assemble(config, trains=False)
        self._sides = self._drawn(directory, samples)
        self._model = load_model(directory.path, config.trust)
        method, server = self._assembly.method, self._assembly.server
        self._untrained = method.model_for(server, None).eval()

    def run(self) -> dict[str, Membership]:
        """Run every attack that fits the model, also on the untrained model for comparison.

        Returns:
            Attack to its result: "loss" of a classifier, else "views" of an encoder that was
            trained; "centroids" where there are any. Empty if no samples were held out.
        """
        if not self._sides:
            return {}
        scores = {**self._encoder_scores(), **self._centroid_scores()}
        return {
            name: membership(members, others, self._seed(name))
            for name, (members, others) in scores.items()
        }

    @property
    def can_compare(self) -> bool:
        """Whether samples were held out, with which members can be compared."""
        return bool(self._sides)

    def _encoder_scores(self) -> dict[str, list[NDArray[np.float64]]]:
        models = {"": self._model, ", untrained": self._untrained}
        if self._model.classifies:
            return {f"loss{name}": self._losses(model) for name, model in models.items()}
        if _same(self._model.encoder, self._untrained.encoder):
            return {}
        return {f"views{name}": self._views(model) for name, model in models.items()}

    def _losses(self, model: Clusterer) -> list[NDArray[np.float64]]:
        found = []
        for side in self._sides:
            probabilities = self._predicted(model, side).probabilities
            assert probabilities is not None  # of a classifier
            assert side.labels is not None
            found.append(loss_scores(probabilities, side.labels))
        return found

    def _views(self, model: Clusterer) -> list[NDArray[np.float64]]:
        task = self._assembly.workload.task
        augment = task.augmentation.build(task.shape).to(self._device)
        encoder = model.encoder.to(self._device)
        found = []
        for number, side in enumerate(self._sides):
            samples = torch.from_numpy(np.asarray(side.samples[:])).to(self._device)
            found.append(view_scores(encoder, augment, samples, self._seed("views", number)))
        return found

    def _centroid_scores(self) -> dict[str, list[NDArray[np.float64]]]:
        head = None if self._model.head is None else deepcopy(self._model.head).cpu()
        found = [
            centroid_scores(head, self._predicted(self._model, side).embedding)
            for side in self._sides
        ]
        known = [scores for scores in found if scores is not None]
        return {"centroids": known} if known else {}

    @torch.no_grad()
    def _predicted(self, model: Clusterer, side: _Side) -> Prediction:
        """Return the model's outputs for members or non-members, on the CPU."""
        model.to(self._device)
        starts = range(0, len(side.samples), _ROWS)
        rows = (torch.from_numpy(np.array(side.samples[s : s + _ROWS])) for s in starts)
        return join(model(part.to(self._device)) for part in rows).cpu()

    def _drawn(self, directory: RunDirectory, most: int) -> tuple[_Side, ...]:
        """Draw members and test samples or, without these, samples of no client; () if too few."""
        data, parts = self._assembly.data, self._assembly.workload.parts
        trained = [parts[client] for client in _took_part(directory, len(parts))]
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *trained]))
        if data.test_samples is None:
            others, labels = data.samples, data.labels
            held = np.setdiff1d(np.arange(len(others)), rows)
        else:
            others, labels = data.test_samples, data.test_labels
            held = np.arange(len(others))
        if min(len(rows), len(held)) < FEWEST:
            return ()
        return (
            _Side.drawn(data.samples, data.labels, fixed_sample(rows, most, self._seed("members"))),
            _Side.drawn(others, labels, fixed_sample(held, most, self._seed("others"))),
        )

    def _seed(self, *purpose: str | int) -> int:
        return derive_seed(self._config.seed, "audit", *purpose)


def _took_part(directory: RunDirectory, clients: int) -> list[int]:
    """Return the clients with a task that counts, since only their samples are members."""
    try:
        text = io.StringIO(read_bytes(directory.clients).decode("utf-8"), newline="")
        found = [int(row["client"]) for row in csv.DictReader(text) if int(row["tasks"])]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{directory.clients}: which clients took part cannot be read "
            f"({type(error).__name__}); restore the file."
        ) from error
    return [client for client in found if 0 <= client < clients]


def _same(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two encoders have the same weights, so that nothing was trained."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(value.cpu(), second[name].cpu()) for name, value in first.items()
    )
