"""Two clients at a time with one thread each against one at a time with two threads.

Real images, `executor=bare`, rounds behind the first, in turns; each turn is a process of its own.
The same clients train in both; the number of threads changes rounding.
"""

import statistics

from tests.benchmarks.training_rate import rate_apart

TITLE = "Actors or threads: two cores, two clients"
TURNS = 3
WAYS = {
    "two actors of one thread": ("cluster.num_actors=2",),
    "one actor of two threads": ("cluster.num_actors=1", "cluster.threads_per_client=2"),
    "the serial backend, two threads": ("cluster=serial", "cluster.threads_per_client=2"),
}
WORK = {
    "FedAvg, conv3, batches of 10": (
        *(1024, "experiment=fedavg", "data=mnist", "encoder=conv3", "method.batch_size=10"),
        *("augmentation=none", "method.participation=1.0"),
    ),
    "SimCLR, conv3": (
        *(1024, "experiment=fedsimclr", "data=mnist", "encoder=conv3", "augmentation=digits"),
        *("method.batch_size=128", "method.participation=1.0"),
    ),
    "CCFC, conv3, bfloat16": (
        *(2048, "experiment=ccfc", "data=mnist", "encoder=conv3", "augmentation=digits"),
        *("method.warmup_rounds=0", "method.initial=common", "precision=bf16-mixed"),
    ),
    "SimCLR, ResNet-18": (
        *(128, "experiment=fedsimclr", "data=cifar10", "encoder=resnet18", "augmentation=natural"),
        *("method.batch_size=32", "method.participation=1.0"),
    ),
}
COMMON = ("method.rounds=3", "method.epochs=1", "executor=bare", "partition=iid")


def row(name):
    images, *own = WORK[name]
    keys = (images, *COMMON, *own, f"data.limit={images}", "partition.clients=2")
    seen = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way, more in WAYS.items():
            seen[way].append(rate_apart(*keys, *more).images)
    first, *others = seen.values()
    ratios = [
        statistics.median(a / b for a, b in zip(other, first, strict=True)) for other in others
    ]
    cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"| {name} | {statistics.median(first):,.0f} | {cells} |"


def table():
    """Images a second of the first way, the others' relative to it, as a Markdown table."""
    first, *others = WAYS
    head = ("work", f"{first}, images/s", *(f"{way}, relative" for way in others))
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *map(row, WORK)])
