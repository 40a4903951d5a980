"""Handles to objects that actors made; objects are moved off a node before it is removed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.experimental.locations import get_local_object_locations


@dataclass(eq=False, slots=True, weakref_slot=True)
class Stored:
    """A handle to tensors in the object store.

    Attributes:
        reference: Ray's reference to them; another one once they have moved.
    """

    reference: Any


class Keeper:
    """Registry of the handles in use to objects that actors made and that lie on their nodes."""

    def __init__(self) -> None:
        self._made: WeakSet[Stored] = WeakSet()

    def keep(self, reference: Any) -> Stored:
        """Return a tracked handle to an object that an actor made."""
        stored = Stored(reference)
        self._made.add(stored)
        return stored

    def leave(self, nodes: Collection[str], stop: Callable[[], None]) -> int:
        """Move the objects on these nodes to the driver's node."""
        if not nodes:
            return 0
        gone, moved = set(nodes), 0
        handles = {stored.reference: stored for stored in self._made}
        for reference, place in get_local_object_locations(list(handles)).items():
            if gone.isdisjoint(place["node_ids"]):
                continue
            stop()
            stored = handles[reference]
            moved += stored.reference is reference and self._move(stored)  # `stop` may move some
        return moved

    def _move(self, stored: Stored) -> bool:
        """Move an object to the driver's node, and return whether it still existed."""
        try:
            stored.reference = ray.put(ray.get(stored.reference))
        except (ObjectLostError, RayActorError):
            return False
        self._made.discard(stored)
        return True
