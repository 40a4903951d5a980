"""The base of methods' configs: keys, and what the engine must know about them."""

from typing import ClassVar

from coterie.config.component import Component


class MethodConfig(Component):
    """Config of a method; its class variables tell the engine what the keys cannot."""

    extensible: ClassVar[frozenset[str]] = frozenset()
    """Keys that a resumed run may raise, because only the end of the run depends on them: the bits
    are those of a run that had the larger value from the start."""

    sample_clusters: ClassVar[str | None] = "clusters"
    """The config key of the number of sample clusters, if there is one. None if the key `clusters`
    counts something else, such as CP-CFL's pool of models; then `evaluation.clusters` applies."""

    ema: ClassVar[frozenset[str]] = frozenset()
    """Keys of the momenta of moving averages of weights. Weights in bfloat16 lose small steps, so
    `bf16-true` is refused unless the momenta are 0, 1 or null."""

    micro_batch: ClassVar[str | None] = None
    """The config key, if there is one, of the number of samples that pass the network at a time. A
    batch norm in a trained encoder needs two."""

    logs: ClassVar[bool] = False
    """Whether the metrics have names of the user's own."""
    sums: ClassVar[bool] = False
    """Whether clients contribute sums over their samples, which only the plain mean combines
    correctly; then `aggregation.rule` and `aggregation.optimizer` keep their defaults."""

    trains: ClassVar[bool] = True
    """Whether the encoder is trained; others take it as it is."""

    uncoupled: ClassVar[bool] = False
    """Whether a task is one training of `epochs` epochs, on a loss that is a mean of independent
    terms, one per sample. Then single samples can be protected: see `privacy.dp.unit`."""
