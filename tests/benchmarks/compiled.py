"""Local training with `compile=default` against the same without, in turns.

SimCLR, one client of real images in batches of 128, `executor=bare`, two threads; each turn is a
process of its own. "More in the first round" is what compiling takes with PyTorch's cache empty.
"""

import os
import statistics
import tempfile
from unittest import mock

from tests.benchmarks.training_rate import rate_apart

TITLE = "Compiled encoders"
TURNS = 3
NETWORKS = {
    "conv3, 28×28": (2048, "data=mnist", "encoder=conv3"),
    "conv4, 32×32": (2048, "data=cifar10", "encoder=conv4"),
    "ResNet-18, 32×32": (256, "data=cifar10", "encoder=resnet18"),
}
COMMON = (
    *("experiment=simclr", "method.rounds=3", "method.epochs=1", "method.batch_size=128"),
    *("augmentation=natural", "executor=bare", "cluster=serial", "cluster.threads_per_client=2"),
)


def row(network, precision):
    images, *own = NETWORKS[network]
    keys = (images, *COMMON, *own, f"data.limit={images}", f"precision={precision}")
    ratios, more = [], []
    for _ in range(TURNS):
        plain = rate_apart(*keys)
        with tempfile.TemporaryDirectory() as name:
            cache = {"TORCHINDUCTOR_CACHE_DIR": name}
            with mock.patch.dict(os.environ, cache):
                compiled = rate_apart(*keys, "compile=default")
        ratios.append(plain.images / compiled.images)
        more.append(compiled.first - plain.first)
    seen = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    return (
        f"| {network} | {precision} | {statistics.median(ratios):.2f} ({seen}) "
        f"| {statistics.median(more):.0f} s |"
    )


def table():
    """Time of a step against that without, and what compiling takes, as a Markdown table."""
    head = (
        "network",
        "precision",
        "time / uncompiled (turns)",
        "more in the first round",
    )
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    cases = [(network, p) for network in NETWORKS for p in ("32-true", "bf16-mixed")]
    return "\n".join([*lines, *(row(*case) for case in cases)])
