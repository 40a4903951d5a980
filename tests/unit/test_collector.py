"""The garbage collector is paused while a process imports, and works again after it."""

import gc

import pytest

from coterie.collector import paused_collector


def test_it_is_off_in_the_body_and_on_after_it():
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error():
    with pytest.raises(ValueError, match="x"), paused_collector():
        raise ValueError("x")
    assert gc.isenabled()


def test_it_stays_off_if_it_was():
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
