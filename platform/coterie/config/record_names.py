"""Names in a run's records, `metrics.jsonl` and `summary.json`."""

from typing import Literal

RESERVED = (
    "round",
    "stage",
    "phase",
    "step",
    "scope",
    "client",
    "failure",
    "status",
    "messages",
)
"""Keys that locate a line of `metrics.jsonl`; no metric has such a name."""

Status = Literal["completed", "failed", "interrupted"]
"""How a run ended."""
