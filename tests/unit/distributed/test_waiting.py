"""What is said of an actor that dies while it starts."""

import pytest
import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError

from coterie.distributed.waiting import raise_if_dead
from coterie.errors import RunError

ADVICE = "2 worker(s) were killed due to the node running low on memory.\n" + "Refer to it. " * 200


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OutOfMemoryError(ADVICE), r"^An actor died .* out of memory; .* cluster\.num_actors\.$"),
        (ObjectLostError("", None, ADVICE), r"^An actor died while it started \(.{1,520}$"),
    ],
)
def test_it_is_one_sentence_however_long_rays_advice_is(monkeypatch, error, told):
    def get(reference):
        raise error

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RunError, match=told):
        raise_if_dead(None)
