"""The one list of all aggregation stages, in their order, built from a run's config."""

from collections import Counter
from collections.abc import Sequence

from coterie.aggregation.audit import Audit
from coterie.aggregation.client_noise import ClientNoise
from coterie.aggregation.compression import Compression
from coterie.aggregation.limits import Limits
from coterie.aggregation.masking import Masking
from coterie.aggregation.noise import Noise, NoiseLedger
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.rule import Rule
from coterie.aggregation.server_optimizer import ServerOptimizer
from coterie.aggregation.stage import Stage
from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.method import Method
from coterie.errors import ConfigError

_RESULTS = ("sums", "total", "join")
"""Hooks that say what a sum is; the first stage that answers decides."""


def compose_stages(
    config: RunConfig, method: Method, ledger: NoiseLedger | None = None
) -> Pipeline:
    """Compose the stages that a config asks for.

    Raises:
        ConfigError: If two stages have one name, or a custom one would pass by noise or masks.
    """
    dp, aggregation = config.privacy.dp, config.aggregation
    custom = [load_target(target_of(each))(each) for each in aggregation.stages if each is not None]
    limits = Limits(config)
    masking = Masking(method, None if custom else limits.weights)
    candidates: list[Stage | None] = [
        Audit(method),
        limits,
        Compression(aggregation) if aggregation.compression != "none" else None,
        *custom,
        Noise(config, ledger) if dp.clip is not None else None,
        ClientNoise(ledger),
        Rule(aggregation),
        masking if config.privacy.secure_aggregation else None,
        ServerOptimizer(aggregation) if aggregation.optimizer != "none" else None,
    ]
    stages = tuple(stage for stage in candidates if stage is not None)
    _check_custom(custom, stages, config)
    return Pipeline(stages, sums=type(config.method).sums)


def _check_custom(custom: Sequence[Stage], stages: Sequence[Stage], config: RunConfig) -> None:
    name, times = Counter(stage.name for stage in stages).most_common(1)[0]
    if times > 1:
        raise ConfigError(
            f"aggregation.stages: {times} stages have the name {name!r}, which identifies a "
            "stage's data; give each its own."
        )
    private = {
        "privacy.dp": config.privacy.dp.clip is not None,
        "privacy.secure_aggregation": config.privacy.secure_aggregation,
    }
    for key in (key for key, on in private.items() if on):
        for stage in custom:
            for hook in _RESULTS:
                if getattr(type(stage), hook) is not getattr(Stage, hook):
                    raise ConfigError(
                        f"aggregation.stages: {hook} of {stage.name!r} replaces the sum that {key} "
                        "protects; leave one of the two out."
                    )
