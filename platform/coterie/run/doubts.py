"""Warnings about data and config that a run accepts, but that may give disappointing results."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.lattice import LIMIT
from coterie.config.component import Component, load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays
from coterie.contract.samples import StreamedSamples
from coterie.errors import DataError, listed
from coterie.execution.node_local_data import is_node_local
from coterie.networks.encoders import EncoderConfig, Raw
from coterie.run.checks import cluster_number

_SAMPLES, _EACH = 200, 30
"""Samples, in all and for each cluster, below which a trained network is of little use."""
_ROWS, _APART = 10_000, 100
"""Rows that are measured, and how many times wider the widest column is than the median one."""
_SERIES = 20
"""The fewest rows of which a column of distinct whole numbers counts as their numbers."""
_NAMED = 20
"""The most columns of which ranges are told."""
_COLLAPSED = 0.95
"""Share of the samples in one cluster from which on the others are next to nothing."""
_SHOWN = 10
"""Empty clusters that are named."""


def doubts(
    config: RunConfig, data: DataArrays, parts: Sequence[NDArray[np.int64]]
) -> Iterator[str]:
    """Yield a sentence on each problem that a user should solve, or know of, before training.

    Args:
        config: The run's config, of a method of Coterie's.
        data: Its data.
        parts: Rows of each client.
    """
    trains, dp = type(config.method).trains, config.privacy.dp
    if trains:
        yield from _few(sum(map(len, parts)), cluster_number(config, len(data.classes)))
    elif isinstance(config.encoder, EncoderConfig) and config.encoder.untrained:
        yield (
            "The encoder's weights are random, and this method does not train them; take "
            "encoder=timm:NAME or torchvision:NAME with encoder.download=true, or "
            "encoder=pretrained."
        )
    if data.samples.ndim == 2:
        yield from unlike_columns(data, config.data)
    if load_target(target_of(config.method)).needs_labels and data.test_samples is None:
        yield "The data has no test set, so the final score is measured on the training samples."
    if dp.clip is not None and dp.unit == "sample" and trains:
        yield (
            "privacy.dp.unit=sample: each step computes every sample's own gradient, which takes "
            "several times as long and as much memory."
        )


def _few(count: int, clusters: int) -> Iterator[str]:
    if count < max(_SAMPLES, _EACH * clusters):
        yield (
            f"{count:,} samples are few to train a network on, so its result may be chance; "
            "experiment=concord and experiment=kmeans train no network."
        )


def unlike_columns(data: DataArrays, config: Component) -> Iterator[str]:
    """Yield a warning if one column varies far more than the median column."""
    names, ranges = data.features, _ranges(config)
    values = data.samples[:_ROWS].astype(np.float64)
    with np.errstate(invalid="ignore"):  # a column with gaps has no deviation
        deviations = np.nan_to_num(values.std(axis=0))
    varying = np.sort(deviations[deviations > 0])
    if not varying.size:
        return
    times = varying[-1] / varying[(len(varying) - 1) // 2]
    if times < _APART:
        yield from _row_numbers(values, names)
        return
    widest = int(deviations.argmax())
    bounds = values.min(axis=0), values.max(axis=0)
    remedy = _remedy(values, bounds, names, ranges, widest)
    yield (
        f"{names[widest] if names else f'Column {widest + 1} of the samples'} varies "
        f"{times:,.0f} times as much as the median column and will outweigh it; {remedy}."
    )


def _row_numbers(values: NDArray[np.floating], names: Sequence[str]) -> Iterator[str]:
    """Yield a warning about columns that only number the rows."""
    if not names or len(values) < _SERIES:
        return
    counts = (np.diff(values, axis=0) == 1).all(axis=0)
    if counts.any() and not counts.all():
        which = listed([name for name, is_one in zip(names, counts, strict=True) if is_one])
        others = _others(names, counts)
        yield f"{which} numbers the rows and says nothing about them; {others} leaves it out."


def _others(names: Sequence[str], useless: NDArray[np.bool_]) -> str:
    """Return the config key that selects all other columns."""
    kept = [_key(name) for name, is_one in zip(names, useless, strict=True) if not is_one]
    return f"'data.feature_columns=[{','.join(kept) if len(kept) <= _NAMED else '…'}]'"


def _remedy(
    values: NDArray[np.floating],
    bounds: tuple[NDArray[np.floating], NDArray[np.floating]],
    names: Sequence[str],
    ranges: Mapping[str, tuple[float, float]],
    widest: int,
) -> str:
    """Return advice on a column that varies too much: all keys to set, in one sentence.

    Args:
        values: The first samples (n, d).
        bounds: Least and largest values of all (d,).
        names: Their columns (d,); none if they have no names.
        ranges: Those that the config gives.
        widest: The column.
    """
    if not names:
        return "bring columns to like scales, the same way at all sites"
    series, constant = _identifiers(values), values.min(axis=0) == values.max(axis=0)
    useless = series | constant
    told = useless if not useless.all() else constant
    scaling = _in_ranges(bounds, names, ranges, told, widest)
    wrong = series | (constant & ~(np.maximum(-bounds[0], bounds[1]) <= LIMIT))
    if useless.all() or not wrong.any():
        return f"{scaling} brings them to like scales"
    columns = _others(names, useless)
    number = int(wrong.argmax()) if not useless[widest] else widest
    rest = [name for n, name in enumerate(names) if useless[n] and n != number]
    besides = f", and {listed(rest)}, which say nothing" if rest else ""
    is_one = "looks like an identifier" if series[number] else "is the same in all rows"
    if number != widest:
        left = f"{columns} leaves out {names[number]}, which {is_one}{besides}"
        return f"{scaling} brings the others to like scales, and {left}"
    each = ", another whole number in each row" if series[number] else ""
    left = f"it {is_one}{each}, which {columns} leaves out{besides}"
    if not _is_apart(values[:, ~useless]):
        return left
    return f"{left}, and {scaling} brings the others to like scales"


def _is_apart(values: NDArray[np.floating]) -> bool:
    """Return whether one column would outweigh the others, or is too large for exact sums."""
    deviations = np.sort(np.nan_to_num(values.std(axis=0)))
    too_wide = bool(deviations[-1] >= _APART * deviations[(len(deviations) - 1) // 2])
    return too_wide or bool(np.nanmax(np.abs(values)) > LIMIT)


def _in_ranges(
    bounds: tuple[NDArray[np.floating], NDArray[np.floating]],
    names: Sequence[str],
    ranges: Mapping[str, tuple[float, float]],
    useless: NDArray[np.bool_],
    widest: int,
) -> str:
    """Return the config key that scales columns alike, by given ranges or else measured ones."""
    every = {}
    for name, low, high, says_nothing in zip(names, *bounds, useless, strict=True):
        given = ranges.get(name)
        first, last = (_short(low, -1), _short(high, 1)) if given is None else map(_short, given)
        if given is not None or (low < high and not says_nothing):
            every[name] = f"{_key(name)}: [{first}, {last}]"
    shown = [*every.values()] if len(every) <= _NAMED else [every.get(names[widest], ""), "…"]
    return f"'data.feature_ranges={{{', '.join(shown)}}}'"


def check_range(config: RunConfig, data: DataArrays) -> None:
    """Refuse columns of numbers that the exact sums of a method cannot hold.

    Raises:
        DataError: If a method of sums takes samples as they are, and one is too large.
    """
    raw = isinstance(config.encoder, Raw) and not config.encoder.unit_length
    if not (raw and type(config.method).sums and data.samples.ndim == 2):
        return
    if config.privacy.dp.clip is not None or is_node_local(config):
        return
    if isinstance(data.samples, StreamedSamples):
        return  # to read all of them takes long; a client refuses them
    lows, highs = data.samples.min(axis=0), data.samples.max(axis=0)
    largest = np.maximum(-lows, highs)
    widest = int(largest.argmax())
    if not largest[widest] > LIMIT:
        return
    values = np.asarray(data.samples[:_ROWS], dtype=np.float64)
    remedy = _remedy(values, (lows, highs), data.features, _ranges(config.data), widest)
    name = data.features[widest] if data.features else f"column {widest + 1}"
    raise DataError(
        f"{data.name}: {name} has a value of magnitude {_short(largest[widest])}, and this "
        f"method's exact sums take at most {LIMIT}; {remedy}."
    )


def _ranges(config: Component) -> Mapping[str, tuple[float, float]]:
    """Return the ranges of a table's columns that a data set's config gives."""
    given: Mapping[str, tuple[float, float]] = getattr(config, "feature_ranges", {})
    return given


def _key(name: str) -> str:
    """Return a name as a key on the command line, in quotes where it needs them."""
    return name if re.fullmatch(r"\w+", name) else json.dumps(name, ensure_ascii=False)


def _short(value: float, side: int = 0) -> str:
    """Return a number to three digits, such as 117000; rounded up for side 1, down for side -1."""
    rounded = float(f"{value:.3g}")
    if side * (value - rounded) > 1e-6 * abs(value):  # float32 is no nearer
        rounded += side * 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return f"{float(f'{rounded:.3g}'):.15g}"


def _identifiers(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which columns hold a different integer in each row, all within a narrow range."""
    rows = len(values)
    wide = values.max(axis=0) - values.min(axis=0) < 2 * rows
    whole = (values == np.floor(values)).all(axis=0)
    candidates = whole & wide & (rows >= _SERIES)
    alone = [
        bool(c) and len(np.unique(v)) == rows for c, v in zip(candidates, values.T, strict=True)
    ]
    return np.array(alone, dtype=np.bool_)


def doubtful_clusters(assignments: NDArray[np.int64] | None, clusters: int | None) -> str:
    """Return a sentence if nearly all samples are in one cluster, or clusters are empty; or ""."""
    if assignments is None or not len(assignments):
        return ""
    cluster, counts = np.unique(assignments, return_counts=True)
    share, largest = counts.max() / len(assignments), int(cluster[counts.argmax()])
    empty = [*set(range(clusters or 0)).difference(cluster.tolist())]
    if share < _COLLAPSED or largest < 0:
        if not empty:
            return ""
        shown = f" ({listed(sorted(empty))})" if len(empty) <= _SHOWN else ""
        are = "is" if len(empty) == 1 else "are"
        return f"{len(empty):,} of {clusters:,} clusters {are} empty{shown}."
    return (
        f"{share:.1%} of the samples are in cluster {largest}, so the clusters tell next to "
        "nothing; train longer, take more samples or another learning rate."
    )
