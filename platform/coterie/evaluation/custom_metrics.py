"""Builds the metrics that a config names by their classes."""

from coterie.config.schema import EvaluationConfig
from coterie.config.target import build_target
from coterie.contract.metric import Metric
from coterie.errors import ConfigError


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
