"""The data of a run: read and split here, or described by clients that keep it."""

from collections.abc import Sequence

import numpy as np
import torch

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.data import (
    DataArrays,
    DataModule,
    Indices,
    Partition,
    Survey,
)
from coterie.contract.data_checks import check_data
from coterie.contract.method import Task
from coterie.contract.seeds import derive_seed
from coterie.errors import DataError
from coterie.evaluation.semi_supervised import labelled_rows
from coterie.execution.silo_data import SiloData, silo_names


def ask_clients(config: RunConfig) -> list[Survey]:
    """What each client has, asked where its data lies.

    Raises:
        DataError: If a client's data is missing or unreadable.
        RunError: If a client cannot be reached.
    """
    names = silo_names(config)
    if config.cluster.backend == "serial":
        local = SiloData(config, ())
        return [Survey.of(local.arrays(client)) for client in range(len(names))]
    from coterie.distributed.survey import survey

    return survey(config, names)


def described(config: RunConfig, surveys: Sequence[Survey]) -> tuple[DataArrays, list[Indices]]:
    """The federation's data as far as the driver knows it, and the clients' parts of it.

    Returns:
        Arrays that take no memory and have no values, with the shape of all clients' samples
        together, and as parts each client's own rows of them, client after client.

    Raises:
        DataError: If the clients' data does not fit together.
    """
    names, first = silo_names(config), surveys[0]
    for name, found in zip(names, surveys, strict=True):
        if (found.shape, found.dtype) != (first.shape, first.dtype):
            raise DataError(
                f"client {name} has {found.dtype} samples of shape {found.shape}, client "
                f"{names[0]} {first.dtype} of {first.shape}; make them alike, for images with "
                "data.source.size and mode."
            )
        if found.size < 2:
            raise DataError(f"client {name} has {found.size} samples, it needs 2; add some.")
    ends = np.cumsum([found.size for found in surveys])
    shape = (int(ends[-1]), *first.shape)
    data = DataArrays(
        name=target_of(config.data).rpartition(":")[2].lower(),
        samples=np.broadcast_to(np.zeros((), dtype=first.dtype), shape),
        classes=tuple(sorted({name for found in surveys for name in found.classes})),
        owner_names=names,
    )
    starts = [0, *ends[:-1]]
    return data, [np.arange(s, e, dtype=np.int64) for s, e in zip(starts, ends, strict=True)]


def read_and_split(config: RunConfig) -> tuple[DataArrays, list[Indices]]:
    """Read the data and find each client's rows.

    Raises:
        DataError: If the data is missing, cannot be learned from, or cannot be split as asked.
    """
    module: DataModule = load_target(target_of(config.data))(config.data)
    data = module.arrays()
    check_data(data)
    partition: Partition = config.partition  # type: ignore[assignment]  # checked where it is used
    try:
        parts = list(partition.split(data, derive_seed(config.seed, "partition")))
    except DataError as error:  # its functions say clients=…, the user partition.clients=…
        own = str(error).partition("=")[0] in type(config.partition).model_fields
        raise DataError(f"partition.{error}" if own else str(error)) from error
    parts = without_pool(parts, draw_pool(data, config.labelled_pool, config.seed))
    _check_parts(parts)
    return data, parts


def task_of(config: RunConfig, data: DataArrays) -> Task:
    """What is to be learned from the data."""
    return Task(
        shape=data.shape,
        classes=len(data.classes),
        encoder=config.encoder,  # type: ignore[arg-type]  # its `build` is checked when it is called
        augmentation=config.augmentation,  # type: ignore[arg-type]
        dtype=_DTYPES.get(config.precision, torch.float32),
    )


def _check_parts(parts: list[Indices]) -> None:
    for client, rows in enumerate(parts):
        if len(rows) < 2:
            raise DataError(
                f"partition: client {client} of {len(parts)} has {len(rows)} samples, each needs "
                "2; use fewer clients or a more even partition."
            )


_DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


def draw_pool(data: DataArrays, share: float, seed: int) -> Indices:
    """The training rows of the pool, sorted: this share of each class; none for a share of 0.

    FedU and Orchestra (section 6.1) fine-tune with labels of samples that were held out of the
    federated training.

    Args:
        data: Whose samples of known class are drawn from.
        share: In [0, 1).
        seed: The run's.

    Raises:
        DataError: If there are no labels.
    """
    if not share:
        return np.empty(0, np.int64)
    known = np.empty(0, np.int64) if data.labels is None else np.flatnonzero(data.labels >= 0)
    if data.labels is None or not len(known):
        raise DataError(f"labelled_pool={share:g}: data={data.name} has no labels; leave it out.")
    return known[labelled_rows(data.labels[known], share, derive_seed(seed, "labelled pool"))]


def without_pool(parts: Sequence[Indices], pool: Indices) -> list[Indices]:
    """The clients' rows that are not in the pool, in their order."""
    return [rows[~np.isin(rows, pool)] for rows in parts] if len(pool) else list(parts)
