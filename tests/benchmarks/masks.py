"""What secure aggregation costs each client and the server, without training and transport."""

import time

import torch

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.aggregation.masked_sums import masked_bytes
from coterie.aggregation.masking import open_sums
from coterie.contract.phase import WeightedUpdate
from tests.builders.masked import Processes, phase_run

TITLE = "Secure aggregation: milliseconds and bytes of a phase, by clients and float32 numbers"
CASES = ((2, 10_000), (10, 10_000), (50, 10_000), (2, 1_000_000), (10, 1_000_000), (50, 1_000_000))
REPEATS = 3


def table(cases=CASES, repeats=REPEATS):
    """The smallest of some measurements of each case."""
    torch.set_num_threads(1)
    names = ("plain", "masked", "server", "plain B", "masked B", "keys up B", "keys down B")
    lines = [" | ".join(("clients", "numbers", *names)), "--- | " * 8 + "---"]
    for clients, numbers in cases:
        runs = [measure(clients, numbers) for _ in range(repeats)]
        times = [f"{min(run[0][i] for run in runs) * 1e3:.1f}" for i in range(3)]
        lines.append(" | ".join((str(clients), str(numbers), *times, *map(str, runs[0][1]))))
    return "\n".join(f"| {line} |" for line in lines)


def measure(clients, numbers):
    """Seconds of a client without and with masks and of the server; a client's bytes likewise."""
    layout = Layout.of({"w": torch.zeros(numbers)})
    given = {"w": WeightedUpdate(weight=7, tensors={"w": torch.randn(numbers)})}
    means, started = ExactMeans({"w": layout}), time.perf_counter()
    for _ in range(clients):
        means.add(0, given)
    plain, started = time.perf_counter() - started, time.perf_counter()
    processes = Processes({c: {c: given} for c in range(clients)}, layouts={"w": layout})
    masked, exchange = [time.perf_counter() - started], processes.exchange

    def timed(step, messages):
        begun = time.perf_counter()
        answers = exchange(step, messages)
        masked.append(time.perf_counter() - begun)
        return answers

    processes.exchange, started = timed, time.perf_counter()
    run = phase_run({"w": layout})
    opened = open_sums(processes.exchange, run, processes.clients, last=True)
    server = time.perf_counter() - started - sum(masked[1:])
    sizes = 4 * numbers + 8, masked_bytes(layout), max(opened.up.values())
    return (plain / clients, sum(masked) / clients, server), (*sizes, max(opened.down.values()))
