"""Sentences on data and config that a run accepts, and whose result may disappoint."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays

_SAMPLES = 200
"""Samples below which a trained network's representations are of little use."""
_ROWS, _APART = 10_000, 100
"""Rows that are measured, and how many times wider the widest column is than the median one."""


def doubts(
    config: RunConfig, data: DataArrays, parts: Sequence[NDArray[np.int64]]
) -> Iterator[str]:
    """Return a sentence for each thing that people should change, or know, before training.

    Args:
        config: The run's config.
        data: Its data.
        parts: Rows of each client.
    """
    trains = "learning_rate" in type(config.method).model_fields
    count = sum(map(len, parts))
    if trains and count < _SAMPLES:
        yield (
            f"{count:,} samples are few to train a network on, so its result may be chance; "
            "experiment=concord and experiment=kmeans train none."
        )
    if data.samples.ndim == 2 and (wide := _unlike(data.samples[:_ROWS])) is not None:
        column, times = wide
        yield (
            f"Column {column + 1} of the samples varies {times:,.0f} times as much as the median "
            "column and will outweigh it; bring columns to like scales, the same way at all sites."
        )
    if config.privacy.dp.clip is not None and config.privacy.dp.unit == "sample" and trains:
        yield (
            "privacy.dp.unit=sample: each step computes every sample's own gradient, which takes "
            "several times as long and as much memory."
        )


def _unlike(rows: NDArray[np.generic]) -> tuple[int, float] | None:
    """Return the column that varies most and by how much, if the median one varies far less."""
    deviations = rows.astype(np.float64).std(axis=0)
    varying = np.sort(deviations[deviations > 0])
    if not varying.size:
        return None
    times = varying[-1] / varying[(len(varying) - 1) // 2]
    return (int(deviations.argmax()), float(times)) if times >= _APART else None
