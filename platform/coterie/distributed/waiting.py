"""Waits for actors, several times a second interrupted by a check whether to stop."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from coterie.config.schema import ClusterConfig
from coterie.errors import RunError

_POLL_S = 0.2


def wait_for(reference: Any, stop: Callable[[], None], until: float = math.inf) -> bool:
    """Wait until a reference has a result, or its actor has died.

    Args:
        reference: A Ray object reference.
        stop: Called several times a second; raises when the run has to stop.
        until: When to give up, by the monotonic clock.

    Returns:
        Whether it has.
    """
    while not ray.wait([reference], timeout=_POLL_S)[0]:
        stop()
        if time.monotonic() > until:
            return False
    return True


def wait_until_ready(
    actors: Sequence[Any], config: ClusterConfig, stop: Callable[[], None]
) -> None:
    """Wait until all actors are started and set up.

    Args:
        actors: Handles of actors with a method `ready`.
        config: Their CPUs and GPUs, and the time limit.
        stop: Called several times a second; raises when the run has to stop.

    Raises:
        Exception: The error of an actor's set-up, unwrapped.
        RunError: If an actor dies, or they are not ready in time.
    """
    waiting = [actor.ready.remote() for actor in actors]
    deadline = time.monotonic() + config.start_timeout_s
    try:
        while waiting:
            stop()
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=_POLL_S)
            ray.get(ready)
            if waiting and time.monotonic() > deadline:
                raise RunError(_missing(len(waiting), len(actors), config))
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        reason = str(error).strip().splitlines()[-1]
        raise RunError(f"An actor died while it started ({reason}); see Ray's logs.") from error


def _missing(waiting: int, actors: int, config: ClusterConfig) -> str:
    each = f"{config.cpus_per_client:g} CPU, {config.gpus_per_client:g} GPU"
    free = {k: v for k, v in ray.available_resources().items() if k in {"CPU", "GPU"}}
    return (
        f"cluster.start_timeout_s={config.start_timeout_s:g}: {waiting} of {actors} actors "
        f"({each} each) were not granted or not ready in time, free are {free}; lower "
        "cluster.num_actors or add nodes."
    )
