"""The garbage collector is paused while a process imports, and works again after it."""

import gc
import weakref

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


def test_what_the_body_made_is_old_after_it():
    with paused_collector():
        made = [[] for _ in range(10_000)]
    assert any(one is made for one in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0


def test_rubbish_that_the_body_left_is_still_collected():
    with paused_collector():
        rubbish = Rubbish()
        rubbish.itself = rubbish
        there = weakref.ref(rubbish)
        del rubbish
    assert there() is not None
    gc.collect()
    assert there() is None


class Rubbish:
    pass
