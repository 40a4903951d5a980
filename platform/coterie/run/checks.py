"""Checks a config against its data before actors start, and finds the number of clusters."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.config.component import load_target, target_of
from coterie.config.loading import SCORES
from coterie.config.method import MethodConfig
from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays
from coterie.contract.method import Task
from coterie.contract.seeds import seeded
from coterie.errors import ConfigError, out_of_memory, reason
from coterie.evaluation.custom_metrics import build_metrics
from coterie.execution.node_local_data import is_node_local
from coterie.run.precision_checks import check_precision


def check_fit(config: RunConfig, task: Task, data: DataArrays) -> None:
    """Check that data and encoder fit what the config asks for.

    Raises:
        ConfigError: If there are more clusters than samples, in all or to evaluate on; if two keys
            give the number of clusters; if `checkpoint.best` needs labels and there are none; if
            the precision does not suit the method; if the encoder's output does not have its
            declared width; if its group norm has one value a group; or if its batch norm would see
            single samples.
    """
    on_actors = config.accelerator == "cuda" and config.cluster.backend == "ray"
    if on_actors and not config.cluster.gpus_per_client:
        raise ConfigError(
            "accelerator=cuda: cluster.gpus_per_client=0 gives no actor a GPU; set it, for example "
            "to 0.25, or use accelerator=cpu."
        )
    _check_clusters(config, data)
    best = config.checkpoint.best
    if best in SCORES and not type(config.method).logs and not _labelled(config, data):
        raise ConfigError(
            f"checkpoint.best={best}: data={data.name} has no labels to measure it by; leave it "
            "out."
        )
    if build_metrics(config.evaluation) and is_node_local(config):
        raise ConfigError(
            "evaluation.metrics: node-local data stays with its clients; leave it out."
        )
    check_precision(config)
    _check_encoder(task, config.method)


def cluster_number(config: RunConfig, classes: int) -> int:
    """Return the configured number of clusters, else the number of classes; 0 without either."""
    section, _, name = cluster_key(config).partition(".")
    given: int | None = getattr(getattr(config, section), name)
    return given or classes


def cluster_key(config: RunConfig) -> str:
    """Return the config key of the number of clusters: the method's, else `evaluation.clusters`."""
    own = type(config.method).sample_clusters
    return f"method.{own}" if own in type(config.method).model_fields else "evaluation.clusters"


def _check_clusters(config: RunConfig, data: DataArrays) -> None:
    key, asked = cluster_key(config), config.evaluation.clusters
    if asked is not None and key != "evaluation.clusters":
        raise ConfigError(
            f"evaluation.clusters={asked}: this method's number of clusters is {key}; set that."
        )
    if asked is None and load_target(target_of(config.method)).needs_labels:
        return  # a supervised method learns classes, not clusters
    count, clusters = len(data.samples), cluster_number(config, len(data.classes))
    if clusters > count:
        raise ConfigError(
            f"{key}={clusters}: data={data.name} has {count} samples; choose at most as many "
            "clusters."
        )
    most = config.evaluation.max_samples
    if config.evaluation.every and most is not None and most < clusters:
        raise ConfigError(
            f"evaluation.max_samples={most}: that is less than the {clusters} clusters; raise it."
        )


def check_shares(key: str, shares: Iterable[float], pool: float) -> None:
    """Check that training held out enough labels, if any.

    Args:
        key: The key of the shares.
        shares: Of the labels.
        pool: `labelled_pool`.

    Raises:
        ConfigError: If a share is larger than the pool.
    """
    for share in shares if pool else ():
        if share > pool:
            raise ConfigError(
                f"{key}={share:g}: the run held labelled_pool={pool:g} of the samples out of its "
                "training; choose at most that share."
            )


def _labelled(config: RunConfig, data: DataArrays) -> bool:
    """Return whether there is a label; for node-local data only the classes are known."""
    if is_node_local(config):
        return bool(data.classes)
    return data.labels is not None and bool((data.labels >= 0).any())


def _check_encoder(task: Task, method: MethodConfig) -> None:
    """Encode two blank samples, since a user's network may differ from its declared width."""
    with seeded(0), torch.no_grad():
        encoder = _built(task)
        dead = _dead_group_norms(encoder)
        try:
            shape = tuple(encoder(torch.zeros(2, *task.shape)).shape)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"encoder: {type(encoder).__name__} cannot take samples of shape {task.shape} "
                f"({reason(error)}); correct its build, or choose another."
            ) from error
    if any(dead):
        raise ConfigError(
            "encoder: a group norm in it has one value per group on samples of shape "
            f"{task.shape}, and so gives only zeros; make it wider, or choose another norm."
        )
    normed = any(isinstance(part, _BatchNorm) for part in encoder.modules())
    trained = any(parameter.requires_grad for parameter in encoder.parameters())
    key = method.micro_batch
    if key is not None and getattr(method, key) == 1 and normed and trained:
        raise ConfigError(
            f"method.{key}=1: the encoder's batch norm needs two samples; raise it, or "
            "choose an encoder without."
        )
    if shape != (2, encoder.features):
        raise ConfigError(
            f"encoder: {type(encoder).__name__} gives {shape} for 2 samples, but says "
            f"features={encoder.features}; make it (2, {encoder.features})."
        )


def _built(task: Task) -> nn.Module:
    try:
        encoder = task.encoder.build(task.shape)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ConfigError(
            f"encoder: it does not fit into memory ({reason(error)}); make it smaller."
        ) from error
    except OSError as error:  # such as of a hub that cannot be reached
        raise ConfigError(
            f"encoder: {type(task.encoder).__qualname__} cannot be built ({reason(error)}); give "
            "what it loads as a file or folder that is here."
        ) from error
    if not isinstance(getattr(encoder, "features", None), int):
        raise ConfigError(
            f"encoder: build returned {type(encoder).__name__}, not an Encoder; return "
            "Encoder(network, features=…)."
        )
    return encoder


def _dead_group_norms(encoder: nn.Module) -> list[bool]:
    """Return whether a group norm sees only a single value per group, for each norm in use."""
    found: list[bool] = []

    def note(part: nn.GroupNorm, given: tuple[Tensor, ...]) -> None:
        found.append(given[0][0].numel() == part.num_groups)

    for part in encoder.modules():
        if isinstance(part, nn.GroupNorm):
            part.register_forward_pre_hook(note)
    return found
