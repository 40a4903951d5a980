"""What all executors share: device, precision, and when to stop."""

from collections.abc import Callable
from dataclasses import dataclass

Stop = Callable[[], None]
"""Called after each step; raises when the run is to stop."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The base of the executors.

    Attributes:
        accelerator: "cpu" or "cuda".
        precision: Lightning's name of the precision.
        deterministic: Whether to use deterministic algorithms only.
        stop: Called after each step; raises when the run is to stop.
    """

    accelerator: str = "cpu"
    precision: str = "32-true"
    deterministic: bool = True
    stop: Stop = lambda: None
