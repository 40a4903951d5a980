"""The Ray backend's view of the object store."""

import pytest
from ray.exceptions import ActorDiedError, ObjectLostError, RayActorError

from coterie.distributed import backend
from coterie.distributed.backend import RayBackend
from coterie.distributed.handles import Stored
from coterie.errors import StateLostError


@pytest.mark.parametrize(
    "error",
    [
        ObjectLostError("00" * 28, None, ""),
        ActorDiedError(),
        RayActorError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_state_that_is_gone_is_lost_whatever_ray_calls_it(monkeypatch, error):
    def gone(reference):
        raise error

    monkeypatch.setattr(backend, "fetch", gone)
    with pytest.raises(StateLostError):
        RayBackend.fetch(object.__new__(RayBackend), Stored(None))
