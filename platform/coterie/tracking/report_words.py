"""The words of a run's report, for readers who do not train models."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from coterie.config.privacy import PrivacyConfig
from coterie.tracking.formatting import format_bytes

OUTLIERS = "outliers"
"""The column of samples that belong to no cluster."""
_MOST = 30
"""Clients and clusters that the page shows."""


def client_clusters(path: Path) -> tuple[list[str], list[list[str]], str] | None:
    """Return how many samples of each cluster each client has, from `assignments.parquet`.

    Returns:
        Head, rows and a note on what is left out; None without the file.
    """
    if not path.is_file():
        return None
    columns = pq.read_schema(path).names
    named = "client_name" if "client_name" in columns else "client"
    table = pq.read_table(path, columns=[named, "cluster"])
    counts = Counter(zip(*(table[name].to_pylist() for name in (named, "cluster")), strict=True))
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


def in_words(summary: Mapping[str, Any], privacy: PrivacyConfig, clusters: int | None) -> list[str]:
    """Describe what was done, what left the clients, and what protected it.

    Args:
        summary: The content of `summary.json`; {} for a run that has not ended.
        privacy: The run's protection.
        clusters: The number of clusters that have samples; None without clusters.
    """
    if not summary:
        return []
    clients, size = summary["clients"], format_bytes(summary["bytes"]["up"])
    found = "" if clusters is None else f", and it sorts their samples into {clusters:,} clusters"
    if share := summary.get("metrics", {}).get("outliers", {}).get("share"):
        found += f"; {share:.1%} of them are outliers, which belong to none"
    spent = summary.get("privacy", {})
    return [
        f"{clients:,} clients have trained one model together{found}.",
        f"They sent {size} to do so; coterie audit lists what it was.",
        "Masks were on: the server could read sums over clients, and no client's own message."
        if privacy.secure_aggregation
        else "Masks were off: the server could read each client's own message.",
        _noise(spent),
    ]


def _noise(spent: Mapping[str, Any]) -> str:
    if not spent:
        return "Noise was off: nothing bounds what the result tells about a single sample."
    return (
        f"Noise was on: ε is {spent['epsilon']:.3g} at δ = {spent['delta']:g}. The smaller ε is, "
        "the less the result tells about one sample, or one client; at 1 it is little, at 10 it "
        "may be much."
    )
