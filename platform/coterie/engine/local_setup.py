"""Setting up a run whose data stays with its clients: they are asked what there is, no more."""

from collections.abc import Sequence

import numpy as np

from coterie.config.component import load_target, target_of
from coterie.config.explain import one_of
from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays, Indices, LocalDataModule, Survey
from coterie.engine.local_data import LocalData
from coterie.errors import ConfigError, DataError


def keeps_data_local(config: RunConfig) -> bool:
    """Whether the config's data stays with its clients."""
    return isinstance(load_target(target_of(config.data))(config.data), LocalDataModule)


def client_names(config: RunConfig) -> tuple[str, ...]:
    """The clients' names.

    Raises:
        ConfigError: If `cluster.client_resources` names another one.
    """
    module: LocalDataModule = load_target(target_of(config.data))(config.data)
    names = module.client_names
    for name in config.cluster.client_resources:
        if name not in names:
            raise ConfigError(f"cluster.client_resources.{name}: {one_of(name, names)}")
    return names


def ask_clients(config: RunConfig) -> list[Survey]:
    """What each client has, asked where its data lies.

    Raises:
        DataError: If a client's data is missing or unreadable.
        RunError: If a client cannot be reached.
    """
    names = client_names(config)
    if config.cluster.backend == "serial":
        local = LocalData(config, ())
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
    names, first = client_names(config), surveys[0]
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
