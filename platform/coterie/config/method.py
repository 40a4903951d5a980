"""The base of methods' configs: keys, and what the engine must know about them."""

from typing import ClassVar

from coterie.config.component import Component


class MethodConfig(Component):
    """Config of a method; its class variables tell the engine what the keys cannot."""

    extensible: ClassVar[frozenset[str]] = frozenset()
    """Numbers that a resumed run may raise. Only the end of the run depends on them, so the bits
    are those of a run that had them from the start."""

    sample_clusters: ClassVar[str | None] = "clusters"
    """The key of the number of clusters of the samples, if the config has it. None if the key
    `clusters` counts something else, such as CP-CFL's pool of models; then `evaluation.clusters`
    applies."""

    ema: ClassVar[frozenset[str]] = frozenset()
    """Keys of momenta of moving averages of weights. Weights in bfloat16 lose the small steps, so
    `bf16-true` is refused unless the momenta are 0, 1 or null."""

    micro_batch: ClassVar[str | None] = None
    """The key, should there be one, that says how many samples pass the network at a time. A batch
    norm in a trained encoder needs two."""

    sums: ClassVar[bool] = False
    """Whether clients contribute sums over their samples, which only the plain mean adds up; then
    `aggregation.rule` and `aggregation.optimizer` keep their defaults."""

    uncoupled: ClassVar[bool] = False
    """Whether a task is one training of `epochs` epochs, on a loss that is a mean over samples of
    what each has for itself. Then training can be private for single samples: see
    `privacy.dp.unit`."""
