"""A run's metrics in Ray's exporters, for Prometheus and Grafana.

Ray puts `ray_` before each name. `deploy/grafana/coterie.json` draws all of them.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ray.util.metrics import Gauge, Histogram

from coterie.contract.callback import RunCallback
from coterie.contract.observer import PhaseRecord

if TYPE_CHECKING:
    from coterie.distributed.backend import RayBackend

_SECONDS = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]
"""Upper bounds of the histogram's buckets."""
_GAUGES = {
    "round": ("Rounds that are over.", ()),
    "stage": ("1 for the stage of the last phase, 0 for those before.", ("stage",)),
    "clients_done": ("Tasks that succeeded, since this process began.", ()),
    "clients_failed": ("Tasks that failed, since this process began.", ()),
    "bytes": ("Bytes that the run has sent.", ("direction",)),
    "loss": ("Mean loss over the last phase's clients.", ()),
    "score": ("Scores of the last evaluation.", ("name",)),
    "actors": ("Client actors of the run.", ("which",)),
}
_AGAIN_S = 5.0
"""Seconds between updates: Ray drops a gauge that was not set for 20 seconds."""


class RunMetrics(RunCallback):
    """A run's metrics, which the driver sets and Ray's agent on the driver's node exports.

    Totals are gauges, so that a total of 0 has a series too. A thread sets all of them again every
    few seconds until `close`, as long as a round may take.

    Args:
        backend: Tells how many actors there are.
        run: The name of the run's directory, a label of all series.
    """

    def __init__(self, backend: "RayBackend", experiment: str, run: str) -> None:
        tags = {"experiment": experiment, "run": run}
        self._gauges = {
            name: Gauge(f"coterie_{name}", about, tag_keys=(*tags, *own)).set_default_tags(tags)
            for name, (about, own) in _GAUGES.items()
        }
        about = "Seconds of a client's task."
        self._seconds = Histogram(
            "coterie_client_seconds", about, boundaries=_SECONDS, tag_keys=tuple(tags)
        ).set_default_tags(tags)
        self._backend = backend
        self._stage: str | None = None
        self._done = self._failed = 0
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="ray-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Set all gauges for the last time."""
        self._closed.set()
        self._thread.join()

    def on_client_end(self, client: int, metrics: Mapping[str, float]) -> None:
        """Count the task."""
        self._done += 1

    def on_client_failure(self, client: int, message: str) -> None:
        """Count the task."""
        self._failed += 1

    def on_phase_end(self, record: PhaseRecord) -> None:
        """Set the round, the stage, the loss and the bytes, and observe the clients' seconds."""
        phase = record.phase
        self._set("round", phase.round if phase.ends_round else phase.round - 1)
        if self._stage is not None:
            self._set("stage", 0, stage=self._stage)
        self._stage = phase.stage
        self._set("stage", 1, stage=phase.stage)
        if record.loss is not None:
            self._set("loss", record.loss)
        sent = {"down": record.bytes_down, "up": record.bytes_up, "peer": record.bytes_peer}
        for way, size in sent.items():
            self._set("bytes", record.bytes_before.get(way, 0) + size, direction=way)
        for seconds in record.client_seconds:
            self._seconds.observe(seconds)

    def on_evaluation_end(self, round_: int, scores: Mapping[str, float], *, final: bool) -> None:
        """Set the scores."""
        for name, score in scores.items():
            self._set("score", score, name=name)

    def _count(self) -> None:
        self._set("clients_done", self._done)
        self._set("clients_failed", self._failed)
        self._set("actors", self._backend.fleet.wanted, which="wanted")
        self._set("actors", self._backend.actors, which="present")

    def _set(self, name: str, value: float, /, **tags: str) -> None:
        self._values[name, tuple(tags.items())] = float(value)

    def _repeat(self) -> None:
        while True:
            over = self._closed.wait(_AGAIN_S)
            self._count()
            for (name, tags), value in list(self._values.items()):
                self._gauges[name].set(value, tags=dict(tags))
            if over:
                return
