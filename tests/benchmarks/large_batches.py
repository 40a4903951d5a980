"""SimCLR's step with and without cached gradients: peak memory of a fresh process, and time.

Each row is a process of its own with random images: it takes one step of 64 without caching, which
brings in what any step needs, then steps of the batch in question. Peak memory is the resident
set's; what the representations and the uint8 images take is told beside it. Seconds are CPU time of
one thread, which other work on the machine disturbs least. With the arguments `figure FILE` the
sweep over batch sizes is drawn too.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from coterie.contract.method import Task
from coterie.datamodules.augmentations import NaturalAugmentation, NoAugmentation
from coterie.losses.plain import plain_contrastive_loss
from coterie.losses.tiled import tiled_contrastive_loss
from coterie.modules.simclr import Contrast, SimCLR
from coterie.networks.encoders import ConvNet3
from coterie.networks.resnet import ResNet
from tests.benchmarks.large_batches_figure import draw_costs

TITLE = "Cached gradients: SimCLR's step at growing batch sizes, micro-batches of 64"
SHAPES = {"conv3": (1, 28, 28), "resnet18": (3, 32, 32)}
SIZES = {"conv3": (64, 256, 1024, 4096, 16_384), "resnet18": (64, 256, 1024)}
PLAIN = {"conv3": (64, 256, 1024, 4096), "resnet18": (64, 256)}
MICRO = 64
FITS = 8_192


def build(net, micro, views):
    encoder = {"conv3": ConvNet3, "resnet18": ResNet}[net]()
    augmentation = {"natural": NaturalAugmentation, "none": NoAugmentation}[views]()
    task = Task(shape=SHAPES[net], classes=10, encoder=encoder, augmentation=augmentation)
    torch.manual_seed(0)
    module = Contrast(SimCLR.Config(micro_batch_size=micro), task)
    module.on_train_epoch_start()
    return module, module.configure_optimizers()


def step(module, optimizer, images, seed):
    batch = module.on_after_batch_transfer({"samples": images, "seed": seed}, 0)
    loss = module.training_step(batch, 0)["loss"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def one(net, size, micro, views, steps):
    """Take the steps in this process: its peak memory in MB and the CPU seconds of each step."""
    torch.set_num_threads(1)
    module, optimizer = build(net, micro or None, views)
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (size, *SHAPES[net]), dtype=torch.uint8, generator=draw)
    module_64, optimizer_64 = build(net, None, views)
    step(module_64, optimizer_64, images[:MICRO], 0)
    del module_64, optimizer_64
    seconds = []
    for number in range(steps):
        started = time.process_time()
        step(module, optimizer, images, number)
        seconds.append(time.process_time() - started)
    projection = module.config.projection
    return {
        "peak": peak_mb(),
        "seconds": seconds,
        "images": images.nbytes / 2**20,
        "representations": 2 * size * projection * 4 / 2**20,
    }


def peak_mb():
    """This process's peak; unlike getrusage's it does not begin at the parent's."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def fresh(net, size, micro, views="natural", steps=2):
    """`one` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.large_batches", net, str(size), str(micro)]
    out = subprocess.run(
        [*command, views, str(steps)], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(out)


def sweep():
    """What each batch size took, plain and cached: rows of net, batch, micro-batch and figures."""
    rows = []
    for net, sizes in SIZES.items():
        for size in sizes:
            steps = 2 if size <= max(PLAIN[net]) else 1
            for micro in (0, MICRO) if size in PLAIN[net] else (MICRO,):
                seen = fresh(net, size, micro, steps=steps)
                own = seen["images"] + seen["representations"]
                per_sample = min(seen["seconds"]) * 1e3 / size
                row = {"net": net, "size": size, "micro": micro, "own": own}
                rows.append({**row, "peak": seen["peak"], "per_sample": per_sample})
    return rows


def costs(rows):
    """The sweep as a Markdown table."""
    lines = [
        "| net | batch | plain, MB | cached, MB | of these images and representations "
        "| the rest over the plain 64 | plain, CPU ms a sample | cached |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    found = {(row["net"], row["size"], row["micro"]): row for row in rows}
    for (net, size, micro), cached in found.items():
        if micro != MICRO:
            continue
        plain = found.get((net, size, 0))
        peak, per_sample = (
            (f"{plain['peak']:.0f}", f"{plain['per_sample']:.2f}") if plain else ("–", "–")
        )
        rest = (cached["peak"] - cached["own"]) / found[net, MICRO, 0]["peak"]
        lines.append(
            f"| {net} | {size:,} | {peak} | {cached['peak']:.0f} | {cached['own']:.0f} "
            f"| {rest:.2f} | {per_sample} | {cached['per_sample']:.2f} |"
        )
    return "\n".join(lines)


def timing():
    """Time of a cached step over a plain one's, in turns, as a Markdown table."""
    rows = [
        "| net | batch | views | plain, ms a sample | cached, ms a sample | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    torch.set_num_threads(1)
    for net, size in (("conv3", 512), ("resnet18", 128)):
        for views in ("none", "natural"):
            draw = torch.Generator().manual_seed(1)
            images = torch.randint(0, 256, (size, *SHAPES[net]), dtype=torch.uint8, generator=draw)
            built = [build(net, micro, views) for micro in (None, MICRO)]
            seconds = [[], []]
            for number in range(8):
                for own, made in zip(seconds, built, strict=True):
                    started = time.process_time()
                    step(*made, images, number)
                    own.append(time.process_time() - started)
            ratios = [c / p for p, c in zip(*seconds, strict=True)][1:]
            plain, cached = (statistics.median(own[1:]) * 1e3 / size for own in seconds)
            rows.append(
                f"| {net} | {size} | {views} | {plain:.2f} | {cached:.2f} "
                f"| {statistics.median(ratios):.2f} |"
            )
    return "\n".join(rows)


def contrast(n):
    """CPU seconds of the tiled and, if it fits, the plain loss of n pairs; the MB it took."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(1)
    u, v = (torch.randn(n, 128, generator=draw).requires_grad_() for _ in range(2))
    tiled_contrastive_loss(u[:MICRO], v[:MICRO], 0.5).backward()
    before = peak_mb()
    seconds = []
    for form in (tiled_contrastive_loss, *([plain_contrastive_loss] if n <= FITS else [])):
        started = time.process_time()
        form(u, v, 0.5).backward()
        seconds.append(time.process_time() - started)
        if len(seconds) == 1:
            extra = peak_mb() - before
    return {"seconds": seconds, "extra": extra}


def tiles():
    """The contrastive loss in tiles, forward and backward, as a Markdown table."""
    rows = [
        "| n, d = 128 | tiled, CPU s | plain, CPU s | tiled, extra MB |",
        "| --- | --- | --- | --- |",
    ]
    for n in (FITS, 65_536):
        command = [sys.executable, "-m", "tests.benchmarks.large_batches", "contrast", str(n)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        tiled, *plain = found["seconds"]
        shown = f"{plain[0]:.1f}" if plain else "–"
        rows.append(f"| {n:,} | {tiled:.1f} | {shown} | {found['extra']:.0f} |")
    return "\n".join(rows)


def table(figure=None):
    """All tables; the sweep is drawn into a file if one is given."""
    rows = sweep()
    if figure is not None:
        draw_costs(rows, figure)
    return f"{costs(rows)}\n\n{timing()}\n\n{tiles()}"


def main(arguments):
    if arguments[:1] == ["contrast"]:
        sys.stdout.write(json.dumps(contrast(int(arguments[1]))))
    elif arguments[:1] == ["figure"]:
        sys.stdout.write(f"## {TITLE}\n\n{table(Path(arguments[1]))}\n")
    elif arguments:
        net, size, micro, views, steps = arguments
        sys.stdout.write(json.dumps(one(net, int(size), int(micro), views, int(steps))))
    else:
        sys.stdout.write(f"## {TITLE}\n\n{table()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
