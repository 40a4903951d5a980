"""The text of a run's report, for readers who do not train models."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.config.parquet_growth import ParquetTable
from coterie.config.privacy import PrivacyConfig
from coterie.config.regular_files import open_regular
from coterie.tracking.formatting import format_bytes

OUTLIERS = "outliers"
"""The column of samples that belong to no cluster."""
_MOST = 30
"""Clients and clusters that the page shows."""
_ROWS, _KINDS = 200_000_000, 2_000_000
"""The most rows of a file that are read, and the most pairs of a client and a cluster."""
_CLIENT_NAME = "client_name"
_AT_ONCE = 1 << 18
"""Rows that are counted at a time."""


def client_clusters(path: Path) -> tuple[list[str], list[list[str]], str] | None:
    """Return how many samples of each cluster each client has, from `assignments.parquet`.

    Returns:
        Head, rows and a note on what is left out; None without the file.

    Raises:
        ValueError: If it has more rows, clients or clusters than a run has.
    """
    if not path.is_file():
        return None
    counts = _counted(path)
    clients = list(dict.fromkeys(sorted(client for client, _ in counts)))
    sizes: Counter[int] = Counter()
    for (_, cluster), number in counts.items():
        sizes[cluster] += number
    largest = [cluster for cluster, _ in sizes.most_common(_MOST)]
    clusters = sorted(largest, key=lambda own: (own < 0, own))
    rows = [
        [str(client), *(f"{counts[client, cluster]:,}" for cluster in clusters)]
        for client in clients[:_MOST]
    ]
    more = len(clients) > _MOST or len(sizes) > _MOST
    note = (
        f"{len(rows)} of {len(clients):,} clients, the {len(clusters)} largest of {len(sizes):,} "
        "clusters; assignments.parquet has all of them."
    )
    head = ["client", *(OUTLIERS if own < 0 else f"cluster {own}" for own in clusters)]
    return head, rows, note if more else ""


def _counted(path: Path) -> Counter[tuple[Any, int]]:
    """Return the number of samples of each client and cluster, with a part of the file in memory.

    A small file of another's can have billions of equal rows.
    """
    counts: Counter[tuple[Any, int]] = Counter()
    with open_regular(path) as file:
        opened = ParquetTable(file, os.fstat(file.fileno()).st_size)
        named = _CLIENT_NAME if _CLIENT_NAME in opened.schema.names else "client"
        if opened.rows > _ROWS:
            raise ValueError(f"it has {opened.rows:,} rows")
        kinds = [opened.schema.field(name).type for name in (named, "cluster")]
        if pa.types.is_nested(kinds[0]) or not pa.types.is_integer(kinds[1]):
            raise ValueError(f"its clients and clusters are {kinds[0]} and {kinds[1]}")
        same: dict[Any, Any] = {}
        for batch in opened.batches(_AT_ONCE, [named, "cluster"], encoded=named):
            found = pa.Table.from_batches([batch]).group_by([named, "cluster"])
            found = found.aggregate([([], "count_all")])
            clients = _shared(found[named], same)
            keys = zip(clients, found["cluster"].to_pylist(), strict=True)
            counts.update(dict(zip(keys, found["count_all"].to_pylist(), strict=True)))
            if len(counts) > _KINDS:
                raise ValueError(f"it has more than {_KINDS:,} clients and clusters")
    return counts


def _shared(column: Any, same: dict[Any, Any]) -> list[Any]:
    """Return a column's values, with equal values as the same object.

    Args:
        column: The column.
        same: The objects of the columns before.
    """
    if not pa.types.is_dictionary(column.type):
        return [same.setdefault(value, value) for value in column.to_pylist()]
    found = list[Any]()
    for chunk in column.chunks:
        words = [same.setdefault(word, word) for word in chunk.dictionary.to_pylist()]
        rows = chunk.indices.to_pylist()
        found += [None if row is None else words[row] for row in rows]
    return found


_MASKED = "Masks were on: the server could read sums over clients, and no client's own message"
_UNMASKED = "; numbers on its training, such as its loss, each client sends unmasked."
_UNCOVERED = (
    "ε is that of the model alone: scores, figures and tables on this page, and the samples' "
    "clusters, come from the samples themselves without noise."
)


def in_words(
    summary: Mapping[str, Any],
    privacy: PrivacyConfig,
    clusters: int | None,
    own_noise: float | None = None,
    *,
    most: int | None = None,
) -> list[str]:
    """Describe what was done, what left the clients, and what protected it.

    Args:
        summary: The content of `summary.json`; {} for a run that has not ended.
        privacy: The run's protection.
        clusters: The number of clusters that have samples; None without clusters.
        own_noise: The ε of what clients added noise to themselves; None without such noise.
        most: The number of clusters that samples could belong to, if it is known.
    """
    if not summary:
        return []
    clients, size = summary["clients"], format_bytes(summary["bytes"]["up"])
    empty = f" of {most:,}" if clusters is not None and most is not None and clusters < most else ""
    found = (
        ""
        if clusters is None
        else f", and it sorts their samples into {clusters:,}{empty} clusters"
    )
    if share := summary.get("metrics", {}).get("outliers", {}).get("share"):
        found += f"; {share:.1%} of them are outliers, which belong to none"
    spent = summary.get("privacy", {})
    absent = [f"{number:,} {name}" for name, number in summary.get("simulated", {}).items()]
    return [
        f"{clients:,} clients have trained one model together{found}.",
        *([f"Simulated among their tasks: {', '.join(absent)}."] if absent else []),
        f"They sent {size} to do so; coterie audit lists what it was.",
        _MASKED + ("." if spent else _UNMASKED)
        if privacy.secure_aggregation
        else "Masks were off: the server could read each client's own message.",
        noise_in_words(spent) if spent or own_noise is None else own_noise_in_words(own_noise),
        *([_UNCOVERED] if spent else []),
    ]


def own_noise_in_words(epsilon: float) -> str:
    """Describe what is protected by noise that clients add themselves (Orchestra, FedSC)."""
    return (
        "Clients added noise to some of what they sent, centroids or matrices, whose ε is "
        f"{epsilon:.3g}. It does not cover the model: nothing bounds what the model tells about a "
        "single sample."
    )


def own_noise_of(rows: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> float | None:
    """Return the ε of noise that clients added themselves; None if they added none.

    Args:
        rows: The server's rows of the run's metrics.
        summary: Its summary, which has the ε of `privacy.dp`.
    """
    spent = [float(row["epsilon"]) for row in rows if "epsilon" in row]
    return spent[-1] if spent and not summary.get("privacy") else None


def noise_in_words(spent: Mapping[str, Any]) -> str:
    """Return what differential privacy bounds, by the unit, ε and δ of a run's summary."""
    if not spent:
        return "Noise was off: nothing bounds what the result tells about a single sample."
    return (
        f"Noise was on: ε is {spent['epsilon']:.3g} for one {spent['unit']}, at δ = "
        f"{spent['delta']:g}. The smaller ε is, the less the result tells about one "
        f"{spent['unit']}: at 1 it is little, at 10 it may be much. δ is about the chance that it "
        "tells more."
    )
