"""Refuses, before the run, a precision in which it would train wrongly."""

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError
from coterie.execution.device import client_device


def check_precision(config: RunConfig) -> None:
    """Check that gradients can be scaled in float16, and that bfloat16 loses no small steps."""
    if config.precision == "16-mixed" and (why := _unscaled(config)):
        raise ConfigError(f"precision=16-mixed: {why}; use bf16-mixed.")
    if config.precision == "bf16-true":
        _check_server(config)
        _check_ema(config)


def _unscaled(config: RunConfig) -> str:
    """Return why gradients cannot be scaled, as float16 needs; "" if they can."""
    kind = load_target(target_of(config.method))
    if config.executor != "lightning":
        return f"executor={config.executor} has no gradient scaler"
    if not _on_gpu(config):
        return "clients train on the CPU, which has no gradient scaler"
    if not kind.scalable:
        return f"method={kind.__name__} has steps without a gradient to scale"
    if config.privacy.dp.unit == "sample":
        return "privacy.dp.unit=sample would clip the scaled gradients of its samples"
    return ""


def _on_gpu(config: RunConfig) -> bool:
    """Return whether clients train on a GPU; the driver of a cluster may have none itself."""
    if config.cluster.backend == "ray":
        return config.accelerator != "cpu" and config.cluster.gpus_per_client > 0
    return client_device(config).type == "cuda"


def _check_server(config: RunConfig) -> None:
    """Check the server's optimiser, whose small steps bfloat16 weights would lose."""
    if config.aggregation.optimizer != "none":
        raise ConfigError(
            "precision=bf16-true: bfloat16 rounds away the small steps of the server with "
            f"aggregation.optimizer={config.aggregation.optimizer}; use bf16-mixed."
        )


def _check_ema(config: RunConfig) -> None:
    """Check moving averages: in bfloat16 a step below 2⁻⁹ of a weight does not change it."""
    for key in sorted(config.method.ema):
        momentum = getattr(config.method, key)
        if momentum not in {None, 0.0, 1.0}:
            raise ConfigError(
                "precision=bf16-true: bfloat16 rounds away the small steps of a moving average "
                f"with method.{key}={momentum}; use bf16-mixed."
            )
