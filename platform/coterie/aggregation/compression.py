"""Compressed updates: clients send fewer bytes, and the server averages the restored updates.

int8: each tensor's update is divided by its largest magnitude and rounded to 255 levels, up or down
by chance, so that its expectation is the update (Alistarh et al., "QSGD", NeurIPS 2017, section
3.1, with the maximum norm). topk: of all slots' updates together only the largest entries are sent,
and what is left is added to the client's next update (Stich et al., "Sparsified SGD with Memory",
NeurIPS 2018, algorithm 1).

An update is what a client sends minus what it received. Slots that it did not receive, and running
statistics of BatchNorm, are sent as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.aggregation.stage import Contribution, Stage, StageTask, Start
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import WeightedUpdate
from coterie.contract.roles import is_statistic
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError

_LEVELS = 127
_SCALE_BYTES = 4
_INDEX_BYTES = 4
_WEIGHT_BYTES = 8

Updates = dict[str, Tensor]
""""slot/name" to a flat float64 update."""


class Compression(Stage):
    """Stage that replaces each client's update by its compressed and restored form."""

    name: ClassVar[str] = "compression"

    def __init__(self, config: AggregationConfig) -> None:
        self._config = config

    def check(self, start: Start) -> None:
        """Refuse options that compression cannot be combined with."""
        key = f"aggregation.compression={self._config.compression}"
        if start.config.privacy.secure_aggregation:
            raise ConfigError(
                f"{key}: under privacy.secure_aggregation=true masks turn each number into 64 "
                "bits, so compression saves nothing; leave one of the two out."
            )
        if start.config.privacy.dp.clip is not None:
            raise ConfigError(
                f"{key}: a rounded update may exceed privacy.dp.clip, to which the noise is "
                "scaled; leave one of the two out."
            )
        if type(start.config.method).sums:
            raise ConfigError(
                f"{key}: the method's clients send exact sums over samples, not updates; leave it "
                "out."
            )

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Send the compressed update, and count its bytes."""
        updates = {
            f"{slot}/{name}": _flat(value) - _flat(task.received[slot][name])
            for slot, mean in sorted(sent.up.items())
            if slot in task.received
            for name, value in sorted(mean.tensors.items())
            if not is_statistic(name)
        }
        if not updates:
            return sent
        generator = torch.Generator().manual_seed(derive_seed(task.seed, "compression"))
        if self._config.compression == "int8":
            kept: Updates = {}
            coarse = {key: int8(update, generator) for key, update in updates.items()}
            sizes = {key: len(update) + _SCALE_BYTES for key, update in updates.items()}
        else:
            coarse, kept = topk(updates, task.state, self._config.keep)
            entries = {
                f"{slot}/{name}": _INDEX_BYTES + value.itemsize
                for slot, mean in sent.up.items()
                for name, value in mean.tensors.items()
            }
            sizes = {k: int(values.count_nonzero()) * entries[k] for k, values in coarse.items()}
        up = {slot: _restored(slot, mean, task, coarse) for slot, mean in sent.up.items()}
        return replace(
            sent,
            up=up,
            bytes_up={**sent.bytes_up, **_bytes(sent.up, sizes)},
            state={**sent.state, self.name: kept} if kept else sent.state,
        )


def int8(update: Tensor, generator: torch.Generator) -> Tensor:
    """Round the update to 255 levels of its largest magnitude, at random and without bias.

    Args:
        update: float64 (elements,).
        generator: Decides which entries are rounded up.

    Returns:
        float64 (elements,).
    """
    largest = float(update.abs().max()) if len(update) else 0.0
    if not largest:
        return torch.zeros_like(update)
    scale = largest / _LEVELS
    chance = torch.rand(len(update), generator=generator, dtype=torch.float64)
    levels = torch.floor(update / scale + chance).clamp(-_LEVELS, _LEVELS)
    return levels * scale


def topk(updates: Updates, memory: Mapping[str, Tensor], keep: float) -> tuple[Updates, Updates]:
    """Return the largest entries of all updates together, and the rest, which the client keeps.

    Args:
        updates: Key to update (elements,).
        memory: Key to the rest of the client's last update; missing keys have none.
        keep: Share of all entries to send, at least one.

    Returns:
        Key to what is sent, zeros elsewhere, and key to the rest.
    """
    wanted = {k: u + memory[k].double() if k in memory else u for k, u in updates.items()}
    joined = torch.cat(list(wanted.values()))
    count = max(1, round(keep * len(joined)))
    # A stable order, so that of equal magnitudes the first ones are sent, on every machine.
    chosen = joined.abs().argsort(descending=True, stable=True)[:count]
    sent = torch.zeros_like(joined)
    sent[chosen] = joined[chosen]
    sizes = [len(each) for each in wanted.values()]
    parts = zip(wanted, torch.split(sent, sizes), torch.split(joined - sent, sizes), strict=True)
    given, kept = Updates(), Updates()
    for key, part, rest in parts:
        given[key], kept[key] = part, rest.float()
    return given, kept


def _flat(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).double()


def _restored(slot: str, mean: WeightedUpdate, task: StageTask, coarse: Updates) -> WeightedUpdate:
    """Return the update that the server reads from a compressed contribution."""
    tensors = {
        name: (_flat(task.received[slot][name]) + coarse[f"{slot}/{name}"])
        .reshape(value.shape)
        .to(value.dtype)
        if f"{slot}/{name}" in coarse
        else value
        for name, value in mean.tensors.items()
    }
    return WeightedUpdate(weight=mean.weight, tensors=tensors)


def _bytes(up: Mapping[str, WeightedUpdate], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return each slot's bytes: compressed tensors by their sizes, others whole, and the weight."""
    return {
        slot: _WEIGHT_BYTES
        + sum(sizes.get(f"{slot}/{n}", value.nbytes) for n, value in mean.tensors.items())
        for slot, mean in up.items()
        if any(f"{slot}/{n}" in sizes for n in mean.tensors)
    }
