"""The keys of a run's config that differ from their defaults."""

from typing import Any

from coterie.config.component import target_of
from coterie.config.explain import dotted
from coterie.config.schema import COMPONENTS, RunConfig


def changed_keys(config: RunConfig) -> dict[str, Any]:
    """Return the keys whose values differ from the defaults, by dotted name, in the config's order.

    The classes that a config names are always among them (`method` is
    `coterie.modules.fedmcc:FedMCC`); their other keys are compared with the defaults of
    the class, not of an experiment.
    """
    values = config.model_dump(mode="json", exclude_defaults=True)
    for name in COMPONENTS:
        values[name] = {"": target_of(getattr(config, name)), **values.get(name, {})}
    ordered = {name: values[name] for name in RunConfig.model_fields if name in values}
    return dotted(ordered)
