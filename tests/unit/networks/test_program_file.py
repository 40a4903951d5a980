"""Programs from files: what `torch.export.load` would run is refused, the rest gives the bits."""

import copy
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from coterie.contract.clusterer import Clusterer
from coterie.networks.encoders import ConvNet3
from coterie.networks.heads import Centroids
from coterie.networks.program_file import Program, ProgramError, checked_program
from coterie.networks.program_operators import is_allowed
from tests.builders.programs import GRAPH, exported, packed, parts_of, with_graph

BATCH = torch.rand(3, 1, 8, 8)


@pytest.fixture(scope="module")
def network():
    return ConvNet3(width=4, features=8).build((1, 8, 8)).eval()


@pytest.fixture(scope="module")
def content(network):
    return exported(network, BATCH)


class Touch:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_a_program_gives_the_networks_bits(network, content):
    program = Program(content)
    for n in (1, 2, 5):
        batch = torch.rand(n, 1, 8, 8)
        assert torch.equal(program(batch), network(batch))
    again = Program(checked_program(content))
    assert torch.equal(again(BATCH), network(BATCH))


def test_a_model_with_its_head_passes():
    small = ConvNet3(width=4, features=8).build((1, 8, 8))
    model = Clusterer(small, Centroids(torch.rand(3, 8))).eval()
    batch = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    found = Program(exported(model, batch))(batch)
    assert torch.equal(found.probabilities, model(batch).probabilities)


def test_nothing_of_the_machine_stays_in_a_checked_program(content):
    text = b"".join(parts_of(checked_program(content)).values())
    assert b"stack_trace" not in text
    assert b"site-packages" not in text


PICKLES = {
    "sample inputs": "data/sample_inputs/model.pt",
    "legacy weights": "data/weights/model.pt",
    "legacy constants": "data/constants/model.pt",
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_beside_the_graph_are_left_out(content, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    hostile = io.BytesIO()
    torch.save({"x": Touch()}, hostile)
    parts = {**parts_of(content), PICKLES[name]: hostile.getvalue()}
    assert Program(packed(parts))(BATCH).shape == (3, 8)
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("weights/model_weights_config.json", "weight_0"),
        ("constants/model_constants_config.json", "custom_obj_0"),
        ("constants/model_constants_config.json", "opaque_obj_0"),
        ("constants/model_constants_config.json", "../../x"),
    ],
)
def test_pickled_tensors_and_objects_are_refused(content, tmp_path, monkeypatch, table, path):
    monkeypatch.chdir(tmp_path)
    parts = parts_of(content)
    config = json.loads(parts[f"data/{table}"])
    config["config"]["x"] = {
        "path_name": path,
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    parts[f"data/{table}"] = json.dumps(config)
    parts[f"data/{table.partition('/')[0]}/{path}"] = pickle.dumps(Touch())
    with pytest.raises(ProgramError, match=r"pickled objects|its path_name has the unexp"):
        Program(packed(parts))
    assert not Path("executed").exists()


def node(graph):
    return graph["graph_module"]["graph"]["nodes"][0]


def outer(graph):
    return graph["graph_module"]["module_call_graph"][0]["signature"]


def spec(kind, context):
    inner = {"type": kind, "context": context, "children_spec": []}
    return json.dumps([1, inner])


SYSTEM = "__import__('pathlib').Path('executed').touch()"
CHANGES = {
    "call": lambda g: node(g).update(target="torch.os.system"),
    "file": lambda g: node(g).update(target="torch.ops.aten.from_file.default"),
    "save": lambda g: node(g).update(target="torch.ops.aten.save.default"),
    "unsafe": lambda g: node(g).update(target="torch.ops.aten._unsafe_index.Tensor"),
    "other": lambda g: node(g).update(target="torch.ops.mine.op.default"),
    "attribute": lambda g: node(g).update(target="_operator.attrgetter"),
    "name": lambda g: node(g).update(name=f"x = {SYSTEM}; y"),
    "output": lambda g: node(g)["outputs"][0].update(as_tensor={"name": f"x;{SYSTEM}"}),
    "operator": lambda g: node(g)["inputs"].append(
        {"name": "f", "arg": {"as_operator": "torch.os.system"}, "kind": 1}
    ),
    "expression": lambda g: g["graph_module"]["graph"]["sym_int_values"].update(
        x={"as_expr": {"expr_str": SYSTEM, "hint": None}}
    ),
    "power": lambda g: g["graph_module"]["graph"]["sym_int_values"].update(
        x={"as_expr": {"expr_str": "9**9**9**9", "hint": None}}
    ),
    "range": lambda g: g["range_constraints"].update({SYSTEM: {"min_val": 0, "max_val": 1}}),
    "enum": lambda g: outer(g).update(
        out_spec=spec("builtins.dict", '{"__enum__": true, "fqn": "stranger:X", "name": "Y"}')
    ),
    "factory": lambda g: outer(g).update(
        in_spec=spec("collections.defaultdict", '{"default_factory_module": "stranger"}')
    ),
    "parameter": lambda g: g["graph_module"]["signature"]["input_specs"][0].update(
        parameter={"arg": {"name": "p"}, "parameter_name": "a.__class__"}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_of_other_than_networks_is_refused(content, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramError):
        Program(with_graph(content, CHANGES[name]))
    assert not Path("executed").exists()


ATEN = torch.ops.aten


class Beyond(nn.Module):
    """Reads or writes memory that is not its tensors', by operators that check nothing."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, samples):
        values = samples.float().flatten(1)[:, :16].view(-1, 1, 4, 4)
        if self.how == "write":
            grown, far = torch.ones_like(values[..., :2, :2]), 10**9
            places = torch.zeros_like(grown, dtype=torch.long) + far
            window = [2, 2]
            backward = ATEN.max_pool2d_with_indices_backward.default
            return backward(grown, values, window, window, [0, 0], [1, 1], False, places)
        if self.how == "read":
            lengths = torch.ones(60_000, dtype=torch.long)
            reduce = ATEN.segment_reduce.default
            return reduce(values.flatten()[:8], "max", lengths=lengths, axis=0, unsafe=True)
        return torch.empty(1000)  # what others have left there


@pytest.mark.parametrize(
    ("how", "name"),
    [("write", "max_pool2d_with_indices_backward"), ("read", "segment_reduce"), ("old", "empty")],
)
def test_operators_that_trust_their_arguments_are_refused(how, name):
    with pytest.raises(ProgramError, match=rf"its graph calls torch\.ops\.aten\.{name}"):
        Program(exported(Beyond(how), BATCH, dynamic=None))


class Crash(nn.Module):
    """Calls at which PyTorch ends the process: a division's overflow, scales beyond the samples."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, samples):
        if self.how == "trunc":
            least = torch.full((4,), -(2**63))
            return torch.div(least, torch.full((4,), -1), rounding_mode="trunc") + samples.sum()
        pixels = samples.flatten(1)[:, None].to(torch.uint8)
        if self.how == "volume":
            return ATEN.upsample_nearest3d.default(pixels[..., None, None], [4] * 3, 1e-30)
        return ATEN.upsample_nearest1d.default(pixels, [4], 1e-30)


@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ("trunc", "its as_string has the unexpected value 'trunc'"),
        ("line", r"its graph calls torch\.ops\.aten\.upsample_nearest1d\.default"),
        ("volume", r"its graph calls torch\.ops\.aten\.upsample_nearest3d\.default"),
    ],
)
def test_calls_that_end_the_process_are_refused(how, refused):
    with pytest.raises(ProgramError, match=refused):
        Program(exported(Crash(how), BATCH, dynamic=None))


class Kinds(nn.Module):
    """Calls with a dtype, a layout of memory, and a sum that has a dtype by its name."""

    def forward(self, samples):
        values = samples.to(torch.float64, memory_format=torch.contiguous_format)
        return torch.sum(values.flatten(1), dim=1, keepdim=True, dtype=torch.float32)


@pytest.mark.parametrize("operator", ["to", "_to_copy", "sum"])
@pytest.mark.parametrize("kind", ["scalar_type", "memory_format"])
@pytest.mark.parametrize("number", [{"as_int": -1}, {"as_bool": True}])
def test_numbers_in_place_of_dtypes_and_layouts_are_refused(operator, kind, number):
    """PyTorch would take them as they are, and read what lies beyond its tables."""
    changed = []

    def change(graph):
        for call in graph["graph_module"]["graph"]["nodes"]:
            for given in call["inputs"] if f".{operator}." in call["target"] else ():
                if f"as_{kind}" in given["arg"]:
                    changed.append(given["name"])
                    given["arg"] = number

    content = with_graph(exported(Kinds(), BATCH), change)
    if changed:
        with pytest.raises(ProgramError, match=r"its graph gives .* as (dtype|memory_format)"):
            Program(content)
    else:
        assert Program(content)(BATCH).shape == (3, 1)


def test_operators_of_numbers_alone_are_refused():
    assert not is_allowed("remainder", "int")
    assert not is_allowed("floor_divide", "Scalar_out")
    assert is_allowed("remainder", "Scalar")
    assert is_allowed("sym_size", "int")


class Resized(nn.Module):
    """Networks' own ways to resize and to divide."""

    def forward(self, samples):
        values = samples.float().flatten(1)[:, None, :16]
        twice = nn.functional.interpolate(values, scale_factor=2.0)
        smooth = nn.functional.interpolate(values, size=32, mode="linear")
        return torch.div(twice + smooth, 2, rounding_mode="floor")


def test_networks_resize_and_divide():
    assert torch.equal(Program(exported(Resized(), BATCH))(BATCH), Resized()(BATCH))


class Attention(nn.Module):
    """Attention of four queries to three keys, with values of a number of their own."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, samples):
        query = samples.float().flatten(2)[..., :16].view(-1, 1, 4, 4)
        with torch.no_grad():  # a graph within the graph
            value = torch.ones(query.shape[0], 1, self.values, 4)
            found = nn.functional.scaled_dot_product_attention(query, query[:, :, 1:], value)
        return found + query


@pytest.mark.parametrize("values", [9, 2_000_000])
def test_attention_reads_no_keys_that_are_not_there(values):
    program = Program(exported(Attention(values), BATCH, dynamic=None))
    with pytest.raises(RuntimeError, match=f"3 keys but {values} values"):
        program(BATCH)
    assert torch.is_grad_enabled()


def test_attention_gives_the_networks_bits():
    program = Program(exported(Attention(3), BATCH))
    for each in (program, copy.deepcopy(program)):
        assert torch.equal(each(BATCH), Attention(3)(BATCH))


class Unreadable(nn.Module):
    """A graph that PyTorch writes but does not read."""

    def forward(self, samples):
        with torch.set_grad_enabled(False):
            return samples * 2


def test_a_graph_that_pytorch_cannot_read_is_told_in_a_sentence():
    with pytest.raises(
        ProgramError, match=r"it cannot be read \(Node\.meta .* is missing val field\)"
    ):
        Program(exported(Unreadable(), BATCH))


def test_a_result_given_from_outside_is_refused(content):
    with pytest.raises(ProgramError, match=r"its graph calls torch\.ops\.aten\.abs\.out"):
        Program(with_graph(content, lambda g: node(g).update(target="torch.ops.aten.abs.out")))


@pytest.mark.parametrize(
    "name",
    [
        "efficientnet_b0",
        "swin_t",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit_b_16", "maxvit_t")),
    ],
)
def test_networks_of_torchvision_need_no_other(name):
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None).eval()
        program = torch.export.export(network, (torch.zeros(2, 3, 224, 224),))
    calls = {str(each.target) for each in program.graph.nodes if each.op == "call_function"}
    parts = [call.split(".") for call in calls if call.startswith("aten.")]
    assert [part for part in parts if not is_allowed(part[1], part[2])] == []


def test_guards_are_not_run(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed = with_graph(content, lambda g: g.update(guards_code=[SYSTEM, "False"]))
    assert Program(changed)(BATCH).shape == (3, 8)
    assert not Path("executed").exists()


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_tensors_that_repeat_few_numbers_are_refused(folder):
    """PyTorch would build them by strides of zero, and a copy takes gigabytes."""

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.constant = torch.ones(1)

        def forward(self, samples):
            return samples * self.weight + self.constant

    parts = parts_of(exported(Added(), BATCH))
    table = f"data/{folder}/model_{folder}_config.json"
    config = json.loads(parts[table])
    for entry in config["config"].values():
        entry["tensor_meta"].update(sizes=[{"as_int": 10**9}], strides=[{"as_int": 0}])
    with pytest.raises(ProgramError, match="has fewer numbers than its tensor"):
        Program(packed({**parts, table: json.dumps(config)}))


def test_bombs_and_damage_are_refused(content):
    zeros = {**parts_of(content), "data/weights/weight_0": bytes(10**7)}
    with pytest.raises(ProgramError, match="compressed"):
        Program(packed(zeros, zipfile.ZIP_DEFLATED))
    empty = {**parts_of(content), "data/weights/weight_0": b""}
    with pytest.raises(ProgramError, match="weight_0 is empty"):
        Program(packed(empty))
    for broken in (b"", b"PK", content[:1000], content[:-30], packed({GRAPH: "[" * 100_000})):
        with pytest.raises(ProgramError, match="it cannot be read"):
            Program(broken)
