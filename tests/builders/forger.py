"""A k-means whose client 3, once it has run, has its process speak of others' clients and calls."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from coterie.contract import Client, Outcome, Phase, Slots
from coterie.execution.events import CallDone, ClientFailed, ClientResult
from coterie.execution.worker import Worker
from coterie.modules.kmeans import KMeans


class Forger(KMeans):
    """Forges events from its second task on."""

    class Config(KMeans.Config):
        """Its configuration."""

        forges: str = "failures"
        """`failures` of others, others' `calls`, or `metrics` that are none."""

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Do what k-means does."""
        found = super().client(client, phase, slots)
        if client.id == 3 and Worker.run.__name__ == "run":
            Worker.run = _forging(Worker.run, self._config.forges)  # type: ignore[method-assign]
        return found


def _forging(run: Any, forges: str) -> Any:
    def forged(self: Worker, request: Any, call: int) -> Iterator[Any]:
        for event in run(self, request, call):
            if isinstance(event, ClientResult):
                if forges == "failures":
                    for client in range(5):
                        yield ClientFailed(call=call, client=client, message="It failed.")
                elif forges == "calls":
                    yield CallDone(call=call - 1, sums={})
                elif forges == "metrics":
                    yield replace(event, metrics={"loss": "much"})
                    continue
            yield event

    return forged
