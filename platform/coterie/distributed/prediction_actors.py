"""Actors that predict a stream of new samples with a run's model, for `coterie predict`.

Predictions inside a run are made by its `ClientActor`s, through `execution/predictor.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ray
from torch import nn

from coterie.config.schema import ClusterConfig
from coterie.contract.clusterer import Prediction
from coterie.contract.data import SampleBatch
from coterie.distributed.calls import LOST, fetch
from coterie.distributed.cluster import cluster_has_gpu, connect, disconnect, free_actors
from coterie.distributed.waiting import wait_for, wait_until_ready
from coterie.errors import ConfigError, RunError
from coterie.execution.batch_predictor import BatchPredictor, Predicted
from coterie.execution.device import Accelerator

_AHEAD = 2
"""Batches under way per actor: one that it works on and the next."""


class PredictionActors:
    """Actors that predict batches: `num_actors`, or as many as fit the cluster.

    If the cluster has GPUs, each actor gets one unless `gpus_per_client` is set.

    Args:
        model: In eval mode; stored once per node.
        config: The cluster, and each actor's share of it.
        accelerator: `cpu` uses no GPU.

    Raises:
        ConfigError: If no actor fits the cluster, or it lacks the GPU that is asked for.
        RunError: If no cluster answers at the address, or it does not start the actors in time.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ClusterConfig,
        accelerator: Accelerator,
        stop: Callable[[], None],
    ) -> None:
        self._stop, self.lost = stop, 0
        self.actors: list[Any] = []
        self._owns_cluster = connect(config)
        try:
            self._start_all(model, config, accelerator)
        except BaseException:
            self.close()
            raise

    def _start_all(self, model: nn.Module, config: ClusterConfig, accelerator: Accelerator) -> None:
        has_gpu = cluster_has_gpu()
        if accelerator == "cuda" and not has_gpu:
            raise ConfigError("accelerator=cuda: the cluster has no GPU; use accelerator=cpu.")
        if accelerator != "cpu" and not config.gpus_per_client and has_gpu:
            config = config.model_copy(update={"gpus_per_client": 1.0})
        self._config = config
        slice_ = config.threads_per_client, config.gpus_per_client
        self._arguments = (ray.put(model), accelerator, *slice_)
        self.actors = [self._start() for _ in range(config.num_actors or free_actors(config))]
        wait_until_ready(self.actors, config, self._stop)

    def predict_all(self, batches: Iterable[SampleBatch]) -> Iterator[Predicted]:
        """Predict in order, with at most two batches per actor at a time.

        Raises:
            RunError: If more than `max_actor_restarts` actors die.
        """
        waiting: deque[tuple[int, SampleBatch, Any]] = deque()
        for number, batch in enumerate(batches):
            actor = number % len(self.actors)
            waiting.append((actor, batch, self.actors[actor].predict.remote(batch)))
            if len(waiting) >= _AHEAD * len(self.actors):
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def close(self) -> None:
        """End the actors and the connection, and Ray if it was started here."""
        for actor in self.actors:
            ray.kill(actor)
        if self._owns_cluster:
            disconnect()

    def _start(self) -> Any:
        options = ray.remote(BatchPredictor).options(
            num_cpus=self._config.cpus_per_client,
            num_gpus=self._config.gpus_per_client,
            max_restarts=0,
        )
        return options.remote(*self._arguments)

    def _next(self, waiting: deque[tuple[int, SampleBatch, Any]]) -> Predicted:
        """Wait for the oldest batch; a dead actor's batches go to its replacement."""
        while True:
            actor, batch, reference = waiting[0]
            wait_for(reference, self._stop)
            try:
                prediction: Prediction = fetch(reference)
            except LOST as error:
                self._replace(actor, error)
                for place, (owner, lost, _) in enumerate(waiting):
                    if owner == actor:
                        waiting[place] = (owner, lost, self.actors[actor].predict.remote(lost))
            else:
                waiting.popleft()
                return batch, prediction

    def _replace(self, actor: int, error: Exception) -> None:
        self.lost += 1
        limit = self._config.max_actor_restarts
        if self.lost > limit:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(
                f"{self.lost} actors died, more than cluster.max_actor_restarts={limit} "
                f"({reason}); check whether memory runs out, or take a smaller batch_size."
            ) from error
        self.actors[actor] = self._start()
        wait_until_ready([self.actors[actor]], self._config, self._stop)
