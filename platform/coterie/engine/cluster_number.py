"""How many clusters an evaluation looks for."""

from coterie.config.schema import RunConfig


def cluster_key(config: RunConfig) -> str:
    """The key that says it: the method's own, if it has one, or `evaluation.clusters`."""
    own = type(config.method).sample_clusters
    return f"method.{own}" if own in type(config.method).model_fields else "evaluation.clusters"


def cluster_number(config: RunConfig, classes: int) -> int:
    """What the key says, else the data's number of classes; 0 where nobody knows."""
    section, _, name = cluster_key(config).partition(".")
    given: int | None = getattr(getattr(config, section), name)
    return given or classes
