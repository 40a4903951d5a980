"""From the command to the end of the first round on a local Ray, and where the seconds go."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TITLE = "From the command to the end of the first round: 5 clients, 2 actors, digits, local Ray"
RUNS = 3
COMMAND = (
    sys.executable,
    "-m",
    "coterie.jobs.train",
    "experiment=fedmcc_digits",
    "cluster.num_actors=2",
    "method.representation_rounds=2",
    "method.representation_epochs=1",
    "method.clustering_rounds=0",
    "evaluation.figures=false",
    "evaluation.every=0",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
)


def measure():
    """Seconds of one run by part."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        started = time.perf_counter()
        subprocess.run([*COMMAND, f"run_dir={run_dir}"], check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - started
        seconds = json.loads((run_dir / "summary.json").read_text())["seconds"]
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rounds = [row["seconds"] for row in rows if row["scope"] == "server"]
    parts = {
        "imports, config, data, exit": whole - seconds["total"],
        "Ray and its actors": seconds["start"],
        "first round": rounds[0],
        "second round, for comparison": rounds[1],
    }
    parts["whole process"] = whole
    return parts


def table():
    """Median seconds of each part over the runs, as a Markdown table."""
    runs = [measure() for _ in range(RUNS)]
    rows = ["| part | seconds (median) | min | max |", "| --- | --- | --- | --- |"]
    for part in runs[0]:
        values = sorted(run[part] for run in runs)
        rows.append(
            f"| {part} | {values[len(values) // 2]:.1f} | {values[0]:.1f} | {values[-1]:.1f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
