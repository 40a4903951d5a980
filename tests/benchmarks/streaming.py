"""Data larger than memory: peak memory and speed of reading shards, and of training on them.

The benchmark makes shards of synthetic colour JPEGs of 64×64 pixels; sizes are those of the
decoded pictures, 12,288 bytes each. Each measurement is a process of its own. "Read" takes every
picture once, in random order, in blocks of 256, one block ahead. "Train" is ResNet-18 with a linear
layer by SGD on batches of 64, in one thread, on the batches that a client would get; streamed and
in-memory steps of eight batches take turns in one process, and their ratio is the median.
Memory is what the process alone holds (anonymous pages), without the pages of mapped files, which
the system takes back when it needs them.

    python -m tests.benchmarks.streaming [GB ...]      # 1 and 4 by default
"""

import io
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from coterie.datamodules.shard_files import Row, ShardIndex, write_index, write_shard_files
from coterie.datamodules.shards import Shards

TITLE = "Streamed pictures of 64×64 pixels"
SIZES_GB = (1.0, 4.0)
SIDE, DISTINCT, BLOCK = 64, 500, 256
DECODED = SIDE * SIDE * 3
BATCH, BATCHES, TURNS = 64, 8, 3
TRAINED = 4_000
"""Pictures that training draws from."""


def jpegs(count):
    """Smooth noise with some detail, encoded."""
    from PIL import Image

    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def write(folder, count):
    """Shards of so many pictures; returns their bytes."""
    distinct = jpegs(min(DISTINCT, count))
    rows = (Row(distinct[n % len(distinct)], n % 10, -1, f"{n}.jpg") for n in range(count))
    entries = write_shard_files(folder, rows, 64 * 2**20)
    classes = tuple("0123456789")
    index = ShardIndex(
        kind="pictures", shape=(SIDE, SIDE), modes={"RGB": count}, classes=classes, shards=entries
    )
    write_index(folder, index)
    return sum(path.stat().st_size for path in folder.glob("*.arrow"))


class Anonymous:
    """The most anonymous memory of this process, in MB, looked at ten times a second."""

    def __init__(self):
        self.peak, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.1):
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            self.peak = max(self.peak, int(line.split()[1]) * 1024 / 1e6)

    def stop(self):
        self._over.set()
        self._thread.join()
        return self.peak


def read(folder, stream):
    """Take every picture once; or load all of them."""
    import torch  # what every run holds

    from coterie.contract.samples import read_ahead

    torch.set_num_threads(1)
    memory, begun = Anonymous(), time.perf_counter()
    samples = Shards(Shards.Config(path=str(folder), stream=stream)).arrays().samples
    if stream:
        order = np.random.default_rng(0).permutation(len(samples))
        blocks = [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]
        for _ in read_ahead(lambda rows: samples[rows], blocks, threaded=True):
            pass
    seconds = time.perf_counter() - begun
    return {"images_s": len(samples) / seconds, "mb": memory.stop()}


def batches(samples, task):
    """A client's batches of one turn."""
    from coterie.contract.client import ClientData, Plan
    from coterie.execution.batches import SeededBatches

    data = ClientData(samples=samples, rows=np.arange(min(TRAINED, len(samples))))
    return iter(SeededBatches(data, Plan(batch_size=BATCH, steps=BATCHES), task))


def train(folder, tasks):
    """Images a second of training, streamed and in memory, turn by turn."""
    import torch

    from coterie.contract.clusterer import to_unit
    from coterie.networks.resnet import ResNet

    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = ResNet(depth=18).build((3, SIDE, SIDE))
    with torch.no_grad():
        width = encoder.eval()(torch.zeros(1, 3, SIDE, SIDE)).shape[1]
    model = torch.nn.Sequential(encoder, torch.nn.Linear(width, 10)).train()
    descent = torch.optim.SGD(model.parameters(), 0.01)
    streamed = Shards(Shards.Config(path=str(folder), stream=True)).arrays().samples
    kept = streamed[: min(TRAINED, len(streamed))]

    def task(samples, number):
        begun = time.perf_counter()
        for batch in batches(samples, number):
            descent.zero_grad()
            target = batch["positions"] % 10
            loss = torch.nn.functional.cross_entropy(model(to_unit(batch["samples"])), target)
            loss.backward()
            descent.step()
        return BATCH * BATCHES / (time.perf_counter() - begun)

    speeds = {"streamed": [], "memory": []}
    for number in range(tasks + 1):  # the first warms up
        for name, samples in (("streamed", streamed), ("memory", kept))[:: 1 - 2 * (number % 2)]:
            speeds[name].append(task(samples, number))
    return {name: values[1:] for name, values in speeds.items()}


def child(*arguments):
    """Run a measurement in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.streaming", "--child", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(sizes=SIZES_GB):
    """Two tables in Markdown."""
    lines = [
        "| decoded, GB | pictures | encoded, GB | streamed: peak MB | read, images/s | in memory: "
        "peak MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as root:
        for size in sizes:
            folder, count = Path(root) / f"{size:g}", int(size * 1e9 / DECODED)
            encoded = write(folder, count)
            streamed = child("read", str(folder), "stream")
            loaded = child("read", str(folder), "load") if size <= 4 else None
            peak = "not tried" if loaded is None else f"{loaded['mb']:,.0f}"
            lines.append(
                f"| {size:g} | {count:,} | {encoded / 1e9:.2f} | {streamed['mb']:,.0f} | "
                f"{streamed['images_s']:,.0f} | {peak} |"
            )
        speeds = child("train", str(folder), str(TURNS))
    ratio = [a / b for a, b in zip(speeds["streamed"], speeds["memory"], strict=True)]
    lines += [
        "",
        "| training ResNet-18 | images/s | streamed / in memory | min | max |",
        "| --- | --- | --- | --- | --- |",
        f"| streamed | {statistics.median(speeds['streamed']):.1f} | "
        f"{statistics.median(ratio):.2f} | {min(ratio):.2f} | {max(ratio):.2f} |",
        f"| in memory | {statistics.median(speeds['memory']):.1f} | 1.00 | | |",
    ]
    return "\n".join(lines)


def main(arguments):
    if arguments[:1] != ["--child"]:
        sys.stdout.write(table([float(size) for size in arguments] or SIZES_GB) + "\n")
        return
    kind, folder, option = arguments[1:]
    found = train(folder, int(option)) if kind == "train" else read(folder, option == "stream")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
