"""Configuration of a run: frozen models, defaults, validation, errors in one sentence."""

from coterie.config.component import (
    Component,
    config_model,
    load_target,
    parse_component,
    target_of,
)
from coterie.config.loading import dump_config, load_config
from coterie.config.method import MethodConfig
from coterie.config.partition import PartitionConfig
from coterie.config.schema import COMPONENTS, RunConfig

__all__ = [
    "COMPONENTS",
    "Component",
    "MethodConfig",
    "PartitionConfig",
    "RunConfig",
    "config_model",
    "dump_config",
    "load_config",
    "load_target",
    "parse_component",
    "target_of",
]
