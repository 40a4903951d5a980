"""Builds and computes the metrics that a config names by their classes."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.config.schema import EvaluationConfig
from coterie.config.target import build_target
from coterie.contract.metric import Metric
from coterie.errors import ConfigError
from coterie.evaluation.scorer import OWN

_logger = logging.getLogger(__name__)


def build_metrics(config: EvaluationConfig) -> tuple[Metric, ...]:
    """Build `evaluation.metrics`.

    Raises:
        ConfigError: If one cannot be built or is no `Metric`, or has the name of another.
    """
    built: dict[str, Metric] = {}
    for number, section in enumerate(config.metrics):
        metric: Metric = build_target(f"evaluation.metrics[{number}]", section, (Metric,))
        if metric.name in built:
            raise ConfigError(
                f"evaluation.metrics[{number}]: custom/{metric.name} is also the name of another "
                "metric; measure them in two runs of coterie evaluate."
            )
        built[metric.name] = metric
    return tuple(built.values())


def own_scores(
    metrics: Sequence[Metric],
    embedding: Tensor,
    assignments: NDArray[np.int64] | None,
    labels: NDArray[np.int64],
) -> dict[str, Mapping[str, float]]:
    """Return what the metrics give for final predictions, in the group `custom`.

    One that fails is left out, with a warning: the run is over, and only its model is left to be
    written.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        try:
            found[metric.name] = float(metric(embedding, assignments, labels))
        except Exception:  # whatever a user's code raises
            _logger.warning(
                "custom/%s failed and is left out; correct it, and measure it with coterie "
                "evaluate.",
                metric.name,
                exc_info=True,
            )
    return {OWN: found} if found else {}
