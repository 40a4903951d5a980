"""Keeps a local Ray to this machine and this user: on the loopback, behind the user's token."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from coterie.distributed.ray_token import keep_token

_ENABLED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray keeps to the loopback if this is 0; its name is for systems where that is the default."""


@contextmanager
def private() -> Iterator[None]:
    """Have Ray, started or joined within the context, listen on the loopback only, as on macOS.

    Ray asks for a token by default, from a file that it would write for everybody to read.
    """
    before = os.environ.get(_ENABLED)
    os.environ[_ENABLED] = "0"  # for Ray's own processes
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    keep_token()
    try:
        yield
    finally:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = True
        os.environ.pop(_ENABLED)
        if before is not None:
            os.environ[_ENABLED] = before
