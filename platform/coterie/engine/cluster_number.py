"""How many clusters an evaluation looks for."""

from coterie.config.schema import RunConfig


def cluster_key(config: RunConfig) -> str:
    """The key that says it: the method's own, if it has one, or `evaluation.clusters`."""
    own = type(config.method).sample_clusters
    return f"method.{own}" if own in type(config.method).model_fields else "evaluation.clusters"


def given_clusters(config: RunConfig) -> int | None:
    """What the key says; None if it leaves it to the data."""
    section, _, name = cluster_key(config).partition(".")
    number: int | None = getattr(getattr(config, section), name)
    return number


def cluster_number(config: RunConfig, classes: int) -> int:
    """What the key says, else the data's number of classes; 0 where nobody knows."""
    return given_clusters(config) or classes
