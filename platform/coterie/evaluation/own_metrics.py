"""Builds the metrics that a config names by their classes."""

from coterie.config.schema import EvaluationConfig
from coterie.config.target import build_target
from coterie.contract.metric import Metric


def build_metrics(config: EvaluationConfig) -> tuple[Metric, ...]:
    """Build `evaluation.metrics`.

    Raises:
        ConfigError: If one cannot be built or is no `Metric`.
    """
    return tuple(
        build_target(f"evaluation.metrics[{number}]", section, (Metric,))
        for number, section in enumerate(config.metrics)
    )
