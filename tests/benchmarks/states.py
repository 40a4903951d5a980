"""What the driver does for very many clients that keep a state, on Ray.

Clients that send a 2 MB model back as it came and keep 1 KB for their next turn, which changes in
each; 2 actors on a local Ray, exact sums, a checkpoint after every round, which counts too.
"""

from tests.benchmarks.rounds import measure

TITLE = "Very many clients with a state of 1 KB: 2 MB model, 2 actors, local Ray, all take part"
ROUNDS = {10_000: 4, 100_000: 3}
KEPT = 256
"""Float32 numbers of a state: 1 KB."""


def row(clients, rounds):
    """A line of the table: every round's driver milliseconds a client, and memory."""
    seen = measure(clients, rounds, KEPT, every=1)
    driving = ", ".join(f"{seconds / clients * 1e3:.2f}" for seconds in seen.driving)
    seconds = ", ".join(f"{s:.0f}" for s in seen.seconds)
    return (
        f"| {clients:,} | {seconds} | {driving} | {seen.driver[0]:,.0f} | {seen.driver[-1]:,.0f} "
        f"| {max(seen.actors):,.0f} | {max(seen.store):,.0f} |"
    )


def table():
    """By number of clients, as a Markdown table."""
    head = (
        "clients",
        "rounds, s",
        "the driver's CPU, ms a client",
        "driver after round 1, MB",
        "after the last, MB",
        "both actors, MB",
        "object store, MB",
    )
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(row(*case) for case in ROUNDS.items())])
