"""Very many clients, and very large models: seconds and memory of a round on Ray.

Clients that send the model back as it came; 2 actors on a local Ray, exact sums. All lie in the
memory of one machine: that of the driver, of both actors and the object store add up.
"""

from tests.benchmarks.rounds import measure

TITLE = "Very many clients, and very large models: 2 actors, local Ray, all take part"
CASES = ((5_000, 1, 3), (10, 250, 3), (10, 500, 3))
"""Clients, MB of the model, rounds."""


def row(clients, size, rounds):
    """A line of the table."""
    seen = measure(clients, rounds, elements=size * 250_000)
    seconds = ", ".join(f"{s:.1f}" for s in seen.seconds)
    return (
        f"| {clients:,} | {size:,} | {seconds} | {max(seen.driver):,.0f} "
        f"| {max(seen.actors):,.0f} | {max(seen.store):,.0f} |"
    )


def table():
    """By clients and size, as a Markdown table."""
    head = "clients", "model, MB", "rounds, s", "driver, MB", "both actors, MB", "object store, MB"
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(row(*case) for case in CASES)])
