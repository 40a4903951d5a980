"""What a trial draws from, and whose method it runs."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.builders.every_method import CHOICES

SYSTEMS = (
    ("fedmcc", "mcc"),
    ("cfcl", "cfcl_digits_implicit"),
    ("ccfc", "scfc"),
    ("orchestra",),
    ("cpcfl", "ifca"),
    ("concord",),
    tuple(CHOICES),
)
"""The methods, or experiments, of each system; the last draws from all, baselines among them."""


@dataclass(frozen=True)
class Trial:
    """What a trial does it with.

    Attributes:
        draw: What it draws from.
        folder: Where it works; that above it is shared by all trials.
        method: The method that it runs, if it runs one.
    """

    draw: Random
    folder: Path
    method: str


def drawn(seed: int, folder: Path) -> Trial:
    """Draw a trial; the seeds of a session follow each other, so that its systems take turns."""
    draw = Random(seed)
    return Trial(draw, folder, draw.choice(SYSTEMS[seed % len(SYSTEMS)]))
