"""The type checker for jaxtyping's import hook: checks shapes and dtypes in tests."""

from collections.abc import Callable
from typing import Any, TypeVar

from beartype import BeartypeConf, beartype

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

CHECKED = [
    "coterie.losses",
    "coterie.clustering",
    "coterie.peers",
    "coterie.contract.client",
    "coterie.contract.clusterer",
    "coterie.contract.data",
]
"""Packages and modules whose annotations are checked."""

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float


def check_after_call(function: CallableT) -> CallableT:
    """Check parameters and result when a call has returned.

    jaxtyping has two stand-ins of a function checked: one before the call, which returns `Any`, and
    one after it, with all annotations. The first one is left unchecked, so that a function that
    refuses a shape itself raises its own sentence.
    """
    return function if function.__annotations__.get("return") is Any else _check(function)
