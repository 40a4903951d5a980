"""Samples that are read when they are asked for: rows as of an array, and reading ahead."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.contract.samples import StreamedSamples, read_ahead
from coterie.errors import ContractError

ARRAY = np.arange(60, dtype=np.uint8).reshape(20, 3)


def from_array(rows):
    assert np.all(np.diff(rows) > 0)
    return ARRAY[rows]


SAMPLES = StreamedSamples(shape=ARRAY.shape, dtype=ARRAY.dtype, read=from_array)


@given(st.lists(st.integers(-20, 19)))
def test_rows_in_any_order_are_those_of_the_array(rows):
    index = np.array(rows, dtype=np.int64)
    np.testing.assert_array_equal(SAMPLES[index], ARRAY[index])


@pytest.mark.parametrize("part", [slice(None), slice(3, 9), slice(18, 30), slice(None, None, -2)])
def test_slices_are_those_of_the_array(part):
    np.testing.assert_array_equal(SAMPLES[part], ARRAY[part])


def test_it_says_what_an_array_says():
    shown = SAMPLES.shape, SAMPLES.dtype, SAMPLES.ndim, SAMPLES.size, len(SAMPLES)
    assert shown == (ARRAY.shape, ARRAY.dtype, ARRAY.ndim, ARRAY.size, len(ARRAY))


def test_rows_out_of_range_are_refused():
    with pytest.raises(IndexError, match=r"5\.\.20 of 20"):
        SAMPLES[np.array([5, 20])]


def test_it_does_not_become_an_array_by_accident():
    with pytest.raises(ContractError, match="index the rows"):
        np.asarray(SAMPLES)


def test_a_reader_that_gives_something_else_is_found_out():
    wrong = StreamedSamples(shape=(20, 4), dtype=ARRAY.dtype, read=from_array)
    with pytest.raises(ContractError, match=r"shape \(2, 3\) for 2 samples"):
        wrong[:2]


def test_it_travels():
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(SAMPLES))[4:6], ARRAY[4:6])


@pytest.mark.parametrize("threaded", [True, False])
def test_parts_come_in_order(threaded):
    given_ = list(read_ahead(lambda part: part * 2, iter(range(9)), threaded=threaded))
    assert given_ == [(part, part * 2) for part in range(9)]


def test_the_next_parts_are_read_while_one_is_used_and_no_more():
    read, two_ahead = [], threading.Event()

    def note(part):
        read.append(part)
        if len(read) == 3:
            two_ahead.set()
        return part

    parts = read_ahead(note, range(100), threaded=True)
    assert next(parts) == (0, 0)
    assert two_ahead.wait(10)
    assert next(parts) == (1, 1)
    parts.close()
    assert len(read) <= 4


def test_a_part_that_cannot_be_read_raises_where_it_is_used():
    def fail(part):
        if part == 2:
            raise ValueError("part 2")
        return part

    parts = read_ahead(fail, range(5), threaded=True)
    assert [next(parts), next(parts)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="part 2"):
        next(parts)
