"""A small run that does not end by itself, for tests that stop it and let it go on."""

import json
import time

ENDLESS = (
    "experiment=fedmcc_digits",
    "data.limit=200",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.representation_rounds=100000",
    "method.representation_epochs=1",
    "method.clustering_rounds=1",
    "method.clustering_epochs=1",
    "evaluation.figures=false",
)


def rows(run_dir):
    """How many rows of metrics there are."""
    file = run_dir / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def wait_for_rounds(run_dir, before, going=lambda: True):
    """Wait until the run has gone on for a few rounds after a number of rows."""
    deadline = time.monotonic() + 600
    while rows(run_dir) < before + 20:
        assert going()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())
