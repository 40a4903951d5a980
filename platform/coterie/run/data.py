"""Reads a run's data: splits it over the clients, or surveys node-local data."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays, DataModule, Indices, Partition, Survey
from coterie.contract.data_checks import check_data
from coterie.contract.method import Task
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, DataError, listed
from coterie.evaluation.label_distribution import client_names
from coterie.evaluation.sampling import labelled_rows
from coterie.execution.node_local_data import NodeLocalData, is_node_local, node_local_names
from coterie.run.same_data import fingerprint

_log = logging.getLogger(__name__)
_DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A run's data, as far as the driver has it.

    Attributes:
        parts: Client to its rows of the training samples.
        node_local: Whether the data stays where its clients are.
        labelled: Whether every training sample has a label.
        fingerprint: What a resumed run compares with its checkpoint's.
    """

    arrays: DataArrays
    parts: Sequence[Indices]
    node_local: bool
    labelled: bool
    fingerprint: Mapping[str, Any]


def read_data(config: RunConfig) -> RunData:
    """Read the data, or survey the node-local data.

    Raises:
        ConfigError: If the config asks of node-local data what needs all data in one place.
        DataError: If data is missing, cannot be learned from, or cannot be split as asked.
        RunError: If a node-local client cannot be reached.
    """
    node_local, surveys = is_node_local(config), list[Survey]()
    if node_local:
        _refuse_fine_tuning(config)
        surveys = survey_silos(config)
        arrays, parts = arrays_of_silos(config, surveys)
        _check_private_silos(config, surveys)
        labelled = all(survey.labelled for survey in surveys)
    else:
        arrays, parts = read_and_split(config)
        labelled = arrays.labels is not None and bool((arrays.labels >= 0).all())
    return RunData(
        arrays=arrays,
        parts=parts,
        node_local=node_local,
        labelled=labelled,
        fingerprint=fingerprint(arrays, parts, [survey.digest for survey in surveys]),
    )


def _refuse_fine_tuning(config: RunConfig) -> None:
    """Refuse keys of fine-tuning, which needs labels in one place."""
    pool, shares = config.labelled_pool, list(config.evaluation.labelled_shares)
    if pool or shares:
        key = f"labelled_pool={pool:g}" if pool else f"evaluation.labelled_shares={shares}"
        raise ConfigError(
            f"{key}: data that stays with its clients cannot be used for fine-tuning; leave it out."
        )


def read_and_split(config: RunConfig) -> tuple[DataArrays, list[Indices]]:
    """Read the data and draw each client's rows.

    Raises:
        DataError: If the data is missing, cannot be learned from, or cannot be split as asked.
    """
    module: DataModule = load_target(target_of(config.data))(config.data)
    data = module.arrays()
    check_data(data)
    partition: Partition = config.partition  # type: ignore[assignment]  # checked where it is used
    try:
        parts = list(partition.split(data, derive_seed(config.seed, "partition")))
    except DataError as error:  # "clients=…" in its message is the user's "partition.clients=…"
        own = str(error).partition("=")[0] in type(config.partition).model_fields
        raise DataError(f"partition.{error}" if own else str(error)) from error
    _tell_if_mixed(data, parts)
    parts = without_pool(parts, draw_pool(data, config.labelled_pool, config.seed))
    _check_private(config, parts)
    needed = load_target(target_of(config.method)).fewest_samples
    for client, rows in enumerate(parts):
        # What a site has is all that there is; dealt out, it is a mistake.
        if len(rows) < needed and not (len(rows) and _is_of_one_site(data, rows)):
            raise DataError(
                f"partition: client {client} of {len(parts)} has {len(rows)} samples, each needs "
                f"{needed}; lower partition.clients, or choose a more even partition."
            )
    return data, parts


def _check_private(config: RunConfig, parts: Sequence[Indices]) -> None:
    """Refuse a sample of several clients where noise protects single samples: it counts in each."""
    if not _protects_samples(config):
        return
    held = np.bincount(np.concatenate(parts))
    if held.max(initial=0) > 1:
        raise ConfigError(
            f"partition: {int((held > 1).sum()):,} samples are with several clients, one of them "
            f"{held.max()} times, and privacy.dp counts each sample once; give each to one client."
        )


def _check_private_silos(config: RunConfig, surveys: Sequence[Survey]) -> None:
    """Refuse clients with the same data, such as two of one path, as `_check_private` does."""
    first: dict[str, str] = {}
    for name, found in zip(node_local_names(config), surveys, strict=True):
        other = first.setdefault(found.digest, name)
        if other != name and _protects_samples(config):
            raise ConfigError(
                f"data.clients: {name} has the same data as {other}, and privacy.dp counts each "
                "sample once; give each client its own."
            )


def _protects_samples(config: RunConfig) -> bool:
    """Return whether noise protects single samples."""
    dp = config.privacy.dp
    return dp.clip is not None and (dp.unit == "sample" or bool(type(config.method).sums))


def _is_of_one_site(data: DataArrays, rows: Indices) -> bool:
    """Return whether these rows are all that one of the data's own clients has."""
    return data.owners is not None and bool(
        (data.owners == data.owners[rows[0]]).sum() == len(rows)
    )


def _tell_if_mixed(data: DataArrays, parts: Sequence[Indices]) -> None:
    """Warn if the data names clients and the partition mixes their samples."""
    if data.owners is not None and not client_names(data, parts):
        _log.warning(
            "data=%s names %d clients, but the partition mixes their samples; partition=by_client "
            "keeps them apart.",
            data.name,
            len(data.owner_names),
        )


def draw_pool(data: DataArrays, share: float, seed: int) -> Indices:
    """Draw the training rows of the labelled pool, a share of each class; none for share 0.

    FedU and Orchestra (section 6.1) fine-tune with labels of samples that were held out of the
    federated training.

    Args:
        data: Its samples of known class are drawn from.
        share: In [0, 1).
        seed: The run's seed.

    Returns:
        Sorted rows.

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
    """Return the clients' rows outside the labelled pool, in order."""
    return [rows[~np.isin(rows, pool)] for rows in parts] if len(pool) else list(parts)


def survey_silos(config: RunConfig) -> list[Survey]:
    """Survey each client's data in place.

    Raises:
        DataError: If a client's data is missing or unreadable.
        RunError: If a client cannot be reached.
    """
    names = node_local_names(config)
    if config.cluster.backend == "serial":
        node_local_data = NodeLocalData(config, ())
        return [Survey.of(node_local_data.arrays(client)) for client in range(len(names))]
    from coterie.distributed.survey import survey

    return survey(config, names)


def arrays_of_silos(
    config: RunConfig, surveys: Sequence[Survey]
) -> tuple[DataArrays, list[Indices]]:
    """Return placeholder arrays for all node-local data, and each client's rows.

    Returns:
        Arrays of the right shape and dtype that use no memory and hold no values, and consecutive
        rows for each client.

    Raises:
        DataError: If the clients' data does not fit together.
    """
    names, first = node_local_names(config), surveys[0]
    for name, found in zip(names, surveys, strict=True):
        if (found.shape, found.dtype) != (first.shape, first.dtype):
            raise DataError(
                f"client {name} has {found.dtype} samples of shape {found.shape}, client "
                f"{names[0]} {first.dtype} of {first.shape}; make them alike, for images with "
                "data.source.size and mode."
            )
        if found.features != first.features:
            raise DataError(
                f"client {name} has the features {listed(found.features)}, client {names[0]} "
                f"{listed(first.features)}; name them alike, in one order, with "
                "data.source.feature_columns."
            )
        if not found.size:
            raise DataError(f"client {name} has no sample; add some, or take it out.")
    ends = np.cumsum([found.size for found in surveys])
    shape = (int(ends[-1]), *first.shape)
    data = DataArrays(
        name=target_of(config.data).rpartition(":")[2].lower(),
        samples=np.broadcast_to(np.zeros((), dtype=first.dtype), shape),
        classes=tuple(sorted({name for found in surveys for name in found.classes})),
        owner_names=names,
        features=first.features,
    )
    starts = [0, *ends[:-1]]
    return data, [np.arange(s, e, dtype=np.int64) for s, e in zip(starts, ends, strict=True)]


def task_of(config: RunConfig, data: DataArrays) -> Task:
    """Return the learning task: sample shape, classes, encoder, augmentation and dtype."""
    return Task(
        shape=data.shape,
        classes=len(data.classes),
        encoder=config.encoder,  # type: ignore[arg-type]  # its `build` is checked when it is called
        augmentation=config.augmentation,  # type: ignore[arg-type]
        dtype=_DTYPES.get(config.precision, torch.float32),
        k_anonymity=config.privacy.k_anonymity,
        clip=config.privacy.dp.clip,
    )
