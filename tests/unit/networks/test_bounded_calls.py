"""A stranger's program cannot hang, crash or fill the process by the numbers of its calls."""

import json

import pytest
import torch
from torch import nn

from coterie.networks.bounded_calls import bounded, is_bounded
from coterie.networks.program_file import Program, ProgramError, checked_program
from tests.builders.programs import exported, with_graph

ATEN = torch.ops.aten
IMAGE = torch.rand(2, 3, 8, 8)
LEAST = -(2**63)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (ATEN.arange.start_step, (0, LEAST, -1)),
        (ATEN.arange.start_step, (2**63 - 1, -1, -1)),
        (ATEN.arange.start_step, (0, 10, 0)),
        (ATEN.arange.default, (2**31,)),
        (ATEN.arange.default, (float("inf"),)),
        (ATEN.linspace.default, (0.0, 1.0, 2**40)),
        (ATEN.ones.default, ([2**31],)),
        (ATEN.zeros.default, ([2**20, 2**20, 0],)),
        (ATEN.eye.m, (2**20, 2**20)),
        (ATEN.full.default, ([2**31], 0)),
        (ATEN.repeat_interleave.self_int, (IMAGE, 2**30)),
        (ATEN.new_full.default, (IMAGE, [2**16, 2**16], 1)),
        (ATEN.adaptive_avg_pool3d.default, (IMAGE, [2**40, 3, 0])),
        (ATEN.adaptive_max_pool2d.default, (IMAGE, [0, 4])),
        (ATEN.max_pool1d.default, (IMAGE[0], [2**40], [2], [2**39], [1], True)),
        (ATEN.pad.default, (IMAGE, [2**33, 0])),
        (ATEN.repeat.default, (IMAGE, [2**10, 2**10, 2**10, 1])),
        (ATEN.one_hot.default, (torch.zeros(2**10, dtype=torch.int64), 2**20)),
        (ATEN.cat.default, ([torch.empty(2**28, device="meta")] * 3,)),
    ],
)
def test_sizes_that_no_network_has_are_refused(call, arguments):
    with pytest.raises(RuntimeError, match="for sizes that no network has"):
        bounded(call, *arguments)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (ATEN.arange.start_step, (0, 10, 2)),
        (ATEN.arange.start_step, (10, 0, -3)),
        (ATEN.arange.default, (7,)),
        (ATEN.linspace.default, (0.0, 1.0, 5)),
        (ATEN.ones.default, ([2, 3],)),
        (ATEN.full.default, ([2, 3], float("-inf"))),  # as masks of attention are
        (ATEN.full.default, ([2, 3], -(10**9))),
        (ATEN.new_full.default, (IMAGE, [2, 3], -1e30)),
        (ATEN.repeat_interleave.self_int, (IMAGE, 2, 3)),
        (ATEN.one_hot.default, (torch.tensor([0, 2]), 3)),
        (ATEN.adaptive_avg_pool2d.default, (IMAGE, [1, 1])),
        (ATEN.max_pool2d.default, (IMAGE, [3, 3], [2, 2], [1, 1])),
        (ATEN.pad.default, (IMAGE, [1, -1, 0, 2], "constant", -1e30)),
        (ATEN.upsample_bilinear2d.vec, (IMAGE, [16, 16], False, None)),
        (ATEN.repeat.default, (IMAGE, [1, 2, 1, 1])),
        (ATEN.cat.default, ([IMAGE, IMAGE], 1)),
    ],
)
def test_what_networks_call_gives_the_same(call, arguments):
    assert is_bounded(call)
    found, wanted = bounded(call, *arguments), call(*arguments)
    assert torch.equal(found, wanted)


class Pools(nn.Module):
    def forward(self, images):
        return nn.functional.max_pool2d(images, 2).flatten(1)


def test_a_program_is_run_with_them():
    content = exported(Pools(), IMAGE)
    assert torch.equal(Program(content)(IMAGE), Pools()(IMAGE))

    def huge(graph):
        text = json.dumps(graph).replace('"as_ints": [2, 2]', f'"as_ints": [{2**40}, {2**40}]')
        graph.update(json.loads(text))

    with pytest.raises(RuntimeError, match="calls max_pool2d for sizes that no network has"):
        Program(with_graph(content, huge))(IMAGE)


def test_a_graph_of_very_many_calls_is_refused():
    def long(graph):
        nodes = graph["graph_module"]["graph"]["nodes"]
        nodes[:] = nodes * 10_000

    with pytest.raises(ProgramError, match=r"its graph has [\d,]+ calls, more than 10,000"):
        checked_program(with_graph(exported(Pools(), IMAGE), long))
