"""Tests of how configs are composed: Hydra composes each, as in a new process."""

import pytest

from coterie.commands import compose


@pytest.fixture(autouse=True)
def _hydra_composes(monkeypatch):
    monkeypatch.setattr(compose, "_experiment", compose._experiment.__wrapped__)
