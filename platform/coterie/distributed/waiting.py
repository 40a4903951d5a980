"""Waits for actors, and checks several times a second whether to stop."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from coterie.config.schema import ClusterConfig
from coterie.distributed.calls import LOST, OUT_OF_MEMORY, why_lost
from coterie.distributed.cluster import room
from coterie.distributed.nodes import autoscales
from coterie.errors import RunError, printable

_POLL_S = 0.2
_SETTLE_S = 10.0
"""Seconds to wait for further actors after the last one, once enough are ready."""
_SAY_S = 5.0


class CrashedError(RunError):
    """An actor's process has ended while it started, though its machine has memory.

    Attributes:
        actor: The actor.
    """

    actor: Any = None


def wait_for(reference: Any, stop: Callable[[], None], until: float = math.inf) -> bool:
    """Wait until a reference has a result, or its actor has died.

    `stop` is called several times a second, and raises when the run has to stop; `until` is by
    the monotonic clock.
    """
    while not ray.wait([reference], timeout=_POLL_S)[0]:
        stop()
        if time.monotonic() > until:
            return False
    return True


def wait_until_ready(
    actors: Sequence[Any],
    config: ClusterConfig,
    stop: Callable[[], None],
    least: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[Any, Any]:
    """Wait until actors are started and set up.

    Args:
        actors: Handles of actors with a method `ready`.
        config: Their CPUs and GPUs, and the time limit.
        stop: Called several times a second; raises when the run has to stop.
        least: How many to wait for; the others have a few seconds more. By default all.
        note: Told what is waited for, if it takes long.

    Returns:
        The actors that are not ready yet, each with the reference of its `ready`.

    Raises:
        Exception: The error of an actor's set-up, unwrapped.
        CrashedError: If an actor dies.
        RunError: If too few are ready in time.
    """
    waiting = {actor.ready.remote(): actor for actor in actors}
    enough = len(actors) - (len(actors) if least is None else min(least, len(actors)))
    started = changed = time.monotonic()
    told = False
    while waiting:
        stop()
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=_POLL_S)
        for reference in done:
            actor = waiting.pop(reference)
            try:
                raise_if_dead(reference)
            except CrashedError as error:
                error.actor = actor
                raise
        now = time.monotonic()
        changed = now if done else changed
        late = now > started + config.start_timeout_s
        if len(waiting) <= enough and (late or now > changed + _SETTLE_S):
            break
        if waiting and late:
            raise RunError(_missing(len(waiting) - enough, len(actors) - enough, config))
        if waiting and not told and now > started + _SAY_S:
            told = True
            note(_waits_for(len(actors) - len(waiting), len(actors) - enough, config))
    return {actor: reference for reference, actor in waiting.items()}


def raise_if_dead(reference: Any) -> None:
    """Raise if an actor that was started has died instead of becoming ready.

    Raises:
        Exception: The error of the actor's set-up, unwrapped.
        CrashedError: If the actor has died.
        RunError: If it has, for want of memory.
    """
    try:
        ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None
    except LOST as error:
        if (why := why_lost(error)) == OUT_OF_MEMORY:
            raise RunError(
                "An actor died while it started, as its machine is out of memory; end what else "
                "runs there, or lower cluster.num_actors."
            ) from error
        told = printable(str(error).strip().splitlines()[-1]) or why
        raise CrashedError(f"An actor died while it started ({told}); see Ray's logs.") from error


def _each(config: ClusterConfig) -> str:
    return f"{config.cpus_per_client:g} CPU, {config.gpus_per_client:g} GPU"


def _free() -> dict[str, float]:
    return {k: v for k, v in ray.available_resources().items() if k in {"CPU", "GPU"}}


def _waits_for(ready: int, least: int, config: ClusterConfig) -> str:
    asked = "; the autoscaler was asked for nodes" if autoscales() else ""
    free = " and ".join(f"{amount:g} {kind}" for kind, amount in _free().items()) or "nothing"
    return (
        f"Waiting for actors ({_each(config)} each): {ready} of {least} are ready, {free} is "
        f"free{asked}."
    )


def _missing(waiting: int, actors: int, config: ClusterConfig) -> str:
    return (
        f"cluster.start_timeout_s={config.start_timeout_s:g}: {waiting} of {actors} actors "
        f"({_each(config)} each) were not granted or not ready in time; {_free()} is free, and "
        f"{room(config)}; lower cluster.num_actors or add nodes."
    )
