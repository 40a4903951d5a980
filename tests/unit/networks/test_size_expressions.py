"""Sizes in exported programs: what networks have passes, what keeps SymPy busy is refused."""

import copy
import io
import json
import re
import time
import zipfile

import pytest
import torch
from torch import nn
from torch.export import Dim

from coterie.networks.encoders import ConvNet3
from coterie.networks.program_file import Program, ProgramError
from coterie.networks.size_expressions import is_range_name, is_size_expression

GRAPH = "m/models/model.json"


def symbol(number):
    return f"Symbol('s{number}', positive=True, integer=True)"


def call(name, *parts):
    return f"{name}({', '.join(map(str, parts))})"


def whole(number):
    return call("Integer", number)


S = symbol(1)
HALF = call("Add", call("FloorDiv", call("Add", S, whole(-1)), whole(2)), whole(1))


def exported(network, sample, sizes):
    content = io.BytesIO()
    torch.export.save(
        torch.export.export(network.eval(), (sample,), dynamic_shapes=(sizes,)), content
    )
    return content.getvalue()


@pytest.fixture(scope="module")
def content():
    network = ConvNet3(width=4, features=8).build((1, 8, 8))
    return exported(network, torch.rand(3, 1, 8, 8), {0: Dim("n")})


def with_sizes(content, *texts):
    """Add expressions to a program's graph, and give the first to all its tensors."""
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(new, "w") as archive:
        for name in old.namelist():
            path, part = f"m/{name.partition('/')[2]}", old.read(name)
            if path == GRAPH:
                graph = json.loads(re.sub(rb"Symbol[^\"]*", texts[0].encode(), part))
                graph["graph_module"]["graph"]["sym_int_values"] = {
                    f"x{number}": {"as_expr": {"expr_str": text, "hint": None}}
                    for number, text in enumerate(texts)
                }
                part = json.dumps(graph).encode()
            archive.writestr(path, part)
    return new.getvalue()


SLOW = {
    "product of sums": "*".join(f"(s0+{number})" for number in range(140)),
    "product of called sums": call("Mul", *(call("Add", S, whole(n)) for n in range(13))),
    "minimum of maxima": f"Min({','.join(f'Max(s0+{n},{n}*s0)' for n in range(1, 45))})",
    "called minimum of maxima": call(
        "Min", *(call("Max", call("Add", S, whole(n)), symbol(n)) for n in range(2, 9))
    ),
    "wide maximum": call("Max", *map(symbol, range(20))),
    "remainders within one another": "Mod(" * 60 + "s0" + ",7)" * 60,
    "minus signs": "-" * 900 + "s0",
    "brackets": "(" * 480 + "s0" + ")" * 480,
    "long number": "*".join(["999999999999999999"] * 50),
    "divided by a size": call("CleanDiv", S, call("Mod", symbol(2), symbol(3))),
    "nested": "Add(FloorDiv(" * 5 + S + ", Integer(2)), Integer(1))" * 5,
    "power": "9**9**9**9",
    "half a call": f"Mul({S}, ",
    "nothing": "",
    "no function": "s0(1)",
    "other assumption": "Symbol('s0', commutative=True)",
}


@pytest.mark.parametrize("name", SLOW)
def test_sizes_that_keep_sympy_busy_are_refused_at_once(content, name):
    start = time.process_time()
    with pytest.raises(ProgramError, match="its expr_str has the unexpected value"):
        Program(with_sizes(content, SLOW[name]))
    assert time.process_time() - start < 2


def test_too_many_different_sizes_are_refused(content):
    many = [call("Mul", whole(number), S) for number in range(300)]
    with pytest.raises(ProgramError, match="more than 200 different expressions"):
        Program(with_sizes(content, *many))


FITTING = {
    "symbol": S,
    "unbacked": "Symbol('u0', integer=True)",
    "product": call("Mul", whole(2), S),
    "half": HALF,
    "pixels": call("Mul", whole(512), symbol(7), HALF, HALF.replace("s1", "s2")),
    "stride": call("Min", whole(768), call("Mul", whole(768), S)),
    "at least one": call(
        "Mul",
        call("Max", whole(1), call("FloorDiv", S, whole(4))),
        call("Max", whole(1), call("FloorDiv", symbol(2), whole(4))),
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_sizes_of_networks_pass(name):
    assert is_size_expression(FITTING[name])


def test_ranges_have_short_names():
    assert is_range_name("s98")
    assert is_range_name("2*s0 - 1")
    assert not is_range_name("__import__('os')")
    assert not is_range_name("s" * 201)


class Halved(nn.Module):
    """Layers that halve pictures of any size, and windows of four pixels."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 1, 3, stride=2, padding=1) for _ in range(3)), nn.MaxPool2d(2)
        )

    def forward(self, samples):
        found = self.layers(samples)
        return torch.cat([found.flatten(2), found.transpose(2, 3).flatten(2)], dim=2)


def test_pictures_of_any_size_pass():
    network, sizes = Halved(), {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    program = Program(exported(network, torch.rand(2, 1, 64, 96), sizes))
    for shape in ((1, 1, 64, 64), (3, 1, 80, 48)):
        batch = torch.rand(shape)
        assert torch.equal(program(batch), network(batch))


class Squared(nn.Module):
    """Squares the number of samples five times."""

    def forward(self, samples):
        count = samples.shape[0]
        for _ in range(5):
            count = count * count
        return samples.flatten(1).sum(1, keepdim=True) * count


def with_graph(content, change):
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(new, "w") as archive:
        for name in old.namelist():
            path, part = f"m/{name.partition('/')[2]}", old.read(name)
            archive.writestr(path, change(part.decode()) if path == GRAPH else part)
    return new.getvalue()


@pytest.fixture(scope="module")
def squared():
    """A program that states sizes of its symbol alone."""
    content = exported(Squared(), torch.rand(3, 1, 2, 2), {0: Dim("n")})
    power = re.compile(r"(Pow|Mul)\((Symbol[^\"]*?\)), [^\"]*")
    return with_graph(content, lambda text: power.sub(r"\2", text))


def test_sizes_do_not_grow_without_end(squared):
    program, batch = Program(squared), torch.rand(3, 1, 2, 2)
    for each in (program, copy.deepcopy(program)):
        assert torch.equal(each(batch), Squared()(batch))
    with pytest.raises(RuntimeError, match="makes a size of more than 64 bits"):
        program(torch.rand(5, 1, 2, 2))  # 5^32


@pytest.mark.parametrize("function", ["mul", "add"])
def test_lists_are_no_sizes(squared, function):
    second = {"as_int": 100} if function == "mul" else {"as_ints": [1, 2]}

    def change(text):
        graph = json.loads(text)
        nodes = graph["graph_module"]["graph"]["nodes"]
        call = next(node for node in nodes if node["target"] == "_operator.mul")
        call["target"] = f"_operator.{function}"
        for given, value in zip(call["inputs"], ({"as_ints": [1, 2]}, second), strict=True):
            given["arg"] = value
        return json.dumps(graph)

    with pytest.raises(RuntimeError, match="computes with lists as numbers"):
        Program(with_graph(squared, change))(torch.rand(3, 1, 2, 2))
