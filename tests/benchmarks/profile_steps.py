"""Where the time of local training goes: `make profile`.

Each workload is the second round of one client on real images, by `executor=bare` in this process.
Seconds are exclusive: what an optimiser's closure computes counts as forward and backward.
Operations are counted by PyTorch (convolutions and matrix products) in the first round, and the
machine's peak is its best 1 x 1 convolution in the same precision and with the same threads. By
Winograd's algorithm a 3 x 3 convolution in float32 can be faster than that.
"""

import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.flop_counter import FlopCounterMode

from coterie.commands.compose import compose
from coterie.datamodules.augmentations import ImageView, VectorView
from coterie.execution.bare_trainer import BareTrainer
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend

TITLE = "Where the time of local training goes"
PARTS = ("views", "forward", "backward", "optimiser", "loss", "engine")
METHODS = {
    "SimCLR": ("experiment=simclr", "method.rounds=2", "method.epochs=1"),
    "BYOL": ("experiment=byol", "method.rounds=2", "method.epochs=1"),
    "FedMCC, stage 1": (
        "experiment=fedmcc",
        "method.representation_rounds=2",
        "method.representation_epochs=1",
        "method.clustering_rounds=0",
    ),
    "FedMCC, stage 2": (
        "experiment=fedmcc",
        "method.representation_rounds=0",
        "method.clustering_rounds=2",
        "method.clustering_epochs=1",
    ),
    "CCFC": (
        "experiment=ccfc",
        "method.warmup_rounds=0",
        "method.rounds=2",
        "method.epochs=1",
        "method.initial=common",
    ),
    "Orchestra": ("experiment=orchestra", "method.rounds=2", "method.epochs=1"),
}
NETWORKS = {
    "conv3, 28×28": ("data=mnist", "data.size=28", "encoder=conv3", "augmentation=digits"),
    "conv4, 32×32": ("data=cifar10", "encoder=conv4", "augmentation=natural"),
    "ResNet-18, 32×32": ("data=cifar10", "encoder=resnet18", "augmentation=natural"),
    "ResNet-18, 64×64": (
        *("data=cifar10", "data.size=64"),
        *("encoder=resnet18", "augmentation=natural"),
    ),
}
IMAGES = dict(zip(NETWORKS, (1024, 1024, 128, 64), strict=True))
"""Images of a round, in batches of at most 128."""
COMMON = (
    "executor=bare",
    "cluster=serial",
    "partition=iid",
    "partition.clients=1",
    "cluster.threads_per_client=2",
)


class Clock:
    """Seconds by part, each without the parts within it."""

    def __init__(self):
        self.seconds = defaultdict(float)
        self._open = []
        self._since = time.perf_counter()
        self._depth = 0

    def begin(self, part):
        self._charge()
        self._open.append(part)

    def end(self):
        self._charge()
        self._open.pop()

    @contextmanager
    def part(self, name):
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def _charge(self):
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def enter_module(self, module, _):
        if self._depth == 0:
            self.begin("views" if isinstance(module, ImageView | VectorView) else "forward")
        self._depth += 1

    def leave_module(self, *_):
        self._depth -= 1
        if self._depth == 0:
            self.end()

    @contextmanager
    def running(self):
        """Charge what this process does meanwhile."""
        backward, fit = torch.Tensor.backward, BareTrainer.fit

        def timed_backward(*args, **kwargs):
            with self.part("backward"):
                return backward(*args, **kwargs)

        def timed_fit(trainer, module, batches, seed):
            step = type(module).training_step

            def timed_step(*args, **kwargs):
                with self.part("loss"):
                    return step(*args, **kwargs)

            with mock.patch.object(type(module), "training_step", timed_step):
                return fit(trainer, module, batches, seed)

        with ExitStack() as stack:
            for hook in (
                register_module_forward_pre_hook(self.enter_module),
                register_module_forward_hook(self.leave_module, always_call=True),
                register_optimizer_step_pre_hook(lambda *_: self.begin("optimiser")),
                register_optimizer_step_post_hook(lambda *_: self.end()),
            ):
                stack.callback(hook.remove)
            stack.enter_context(mock.patch.object(torch.Tensor, "backward", timed_backward))
            stack.enter_context(mock.patch.object(BareTrainer, "fit", timed_fit))
            with self.part("engine"):
                yield


class Rounds:
    """Counts the operations of round 1 and times round 2."""

    def __init__(self):
        self.clock, self.flops = Clock(), 0

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def phase_started(self, phase, *_):
        self._stack = ExitStack()
        if phase.round == 2:
            self._stack.enter_context(self.clock.running())
        elif phase.round == 1:
            self._counter = self._stack.enter_context(FlopCounterMode(display=False))

    def commit(self, _, committed):
        self._stack.close()
        if committed.phase.round == 1:
            self.flops += self._counter.get_total_flops()


def measure(method, network, precision):
    """Seconds by part of a round, operations, images."""
    images = IMAGES[network]
    batches = f"method.batch_size={min(images, 128)}"
    own = (f"precision={precision}", f"data.limit={images}", batches)
    assembly = assemble(compose(*METHODS[method], *NETWORKS[network], *COMMON, *own))
    backend, rounds = make_backend(assembly.workload, lambda: None), Rounds()
    try:
        loop = Loop(assembly.method, backend, assembly.workload, rounds, rounds.commit)
        loop.run(RunState(server=assembly.server))
    finally:
        backend.close()
    return rounds.clock.seconds, rounds.flops, images


def peak(precision):
    """Operations a second of the machine's best 1 x 1 convolution, which is a matrix product."""
    torch.set_num_threads(2)
    dtype = torch.bfloat16 if "bf16" in precision else torch.float32
    images, kernels = torch.randn(64, 512, 16, 16, dtype=dtype), torch.randn(512, 512, 1, 1)
    images = images.to(memory_format=torch.channels_last)
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        torch.nn.functional.conv2d(images, kernels.to(dtype))
        best = min(best, time.perf_counter() - started)
    return 2 * 64 * 16 * 16 * 512**2 / best


def table(*precisions):
    """A row per workload, as a Markdown table."""
    yield "| method | network | precision | images/s | " + " | ".join(PARTS) + " | of the peak |"
    yield "| --- " * (5 + len(PARTS)) + "|"
    for precision in precisions or ("32-true", "bf16-mixed"):
        best = peak(precision)
        for method in METHODS:
            for network in NETWORKS:
                seconds, flops, images = measure(method, network, precision)
                whole = sum(seconds.values())
                shares = " | ".join(f"{seconds[part] / whole:.0%}" for part in PARTS)
                share = flops / (seconds["forward"] + seconds["backward"]) / best
                yield (
                    f"| {method} | {network} | {precision} | {images / whole:,.0f} "
                    f"| {shares} | {share:.0%} |"
                )


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n")
    for row in table(*sys.argv[1:]):
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
