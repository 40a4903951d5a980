"""PyTorch's files may name what weights need, and call it with what they hold."""

import argparse
import io
import re
import struct
import zipfile
from collections import Counter, OrderedDict

import pytest
import torch
from lightning.fabric.utilities.data import AttributeDict

from coterie.errors import ContractError, DataError
from coterie.execution.own_trainer import _restore
from coterie.networks.weight_files import parse_weights, unpickled

WEIGHTS = {"a": torch.arange(3.0), "b": torch.zeros(2, 2)}


def saved(weights, *, zipped=True):
    content = io.BytesIO()
    torch.save(weights, content, _use_new_zipfile_serialization=zipped)
    return content.getvalue()


def in_file(pickled, *, zipped=True, compressed=False):
    """A PyTorch file with another pickle in it; unzipped it is an old file's first one."""
    if not zipped:
        return pickled
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    content = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(WEIGHTS))) as given,
        zipfile.ZipFile(content, "w", kind) as archive,
    ):
        for name in given.namelist():
            part = pickled if pickled and name.endswith("data.pkl") else given.read(name)
            archive.writestr(name, part)
    return content.getvalue()


def text(shown):
    return b"X" + struct.pack("<I", len(shown)) + shown.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def named(name):
    return b"c%s\n%s\n" % tuple(name.encode().rsplit(b".", 1))


def call(name, *arguments):
    return named(name) + b"(" + b"".join(arguments) + b"tR"


def pickle_of(value):
    """The pickle of a dict with the value at `a`."""
    return b"\x80\x02}" + text("a") + value + b"s."


def tuple_of(*items):
    return b"(" + b"".join(items) + b"t"


def tensor(count=3, length=3, step=1, offset=0, key="0", kind="torch.FloatStorage"):
    """What `torch.save` writes of a tensor, by default of the one at `a` of `WEIGHTS`."""
    where = tuple_of(text("storage"), named(kind), text(key), text("cpu"), number(count)) + b"Q"
    lengths, steps = tuple_of(number(length)), tuple_of(number(step))
    hooks = call("collections.OrderedDict")
    return call(
        "torch._utils._rebuild_tensor_v2", where, number(offset), lengths, steps, b"\x89", hooks
    )


def doubled(first, last):
    """A pickle of a tuple of a tuple, and so on, each twice."""
    steps = b"".join(b"h%c\x86q%c" % (n, n + 1) for n in range(1, 60))
    return b"\x80\x02" + first + b")q\x01" + steps + last + b"."


MANY = number(1 << 30)
VIEW = tensor(length=1 << 30, step=0)
DICT = b"}q\x01(" + b"".join(number(n) + b"N" for n in range(99)) + b"u"
PAIRS = b"]q\x01(" + b"".join(tuple_of(number(n), b"N") for n in range(99)) + b"e"
NEEDLESS = {
    "a name of tuples": (doubled(b"}", b"K\x01s"), "names that are neither text nor numbers"),
    "tuples by mark": (
        b"\x80\x02}()q\x01"
        + b"".join(b"(h%ch%ctq%c" % (n, n, n + 1) for n in range(1, 60))
        + b"u.",
        "names that are neither text nor numbers",
    ),
    "a number of many digits": (b"\x80\x02}\x8a\xff" + bytes(254) + b"\x01Ns.", "Python objects"),
    "a set of tuples": (doubled(named("__builtin__.set") + b"(]", b"atR"), "__builtin__.set, "),
    "empty bytes": (pickle_of(call("builtins.bytearray", MANY)), "builtins.bytearray, "),
    "a new tensor": (pickle_of(call("torch.FloatTensor", MANY)), "torch.FloatTensor, "),
    "a new tensor of any type": (pickle_of(call("torch.Tensor", MANY)), "torch.Tensor, "),
    "a set of a view": (pickle_of(call("builtins.set", VIEW)), "builtins.set, "),
    "a copy": (
        pickle_of(call("torch._utils._rebuild_device_tensor_from_cpu_tensor", VIEW)),
        "torch._utils._rebuild_device_tensor_from_cpu_tensor, ",
    ),
    "text in another code": (pickle_of(call("_codecs.encode", text("a"))), "_codecs.encode, "),
    "a new storage": (pickle_of(call("torch.storage.UntypedStorage", MANY)), "Python objects"),
    "a view counted": (pickle_of(call("collections.Counter", VIEW)), "Python objects"),
    "a view as names": (pickle_of(call("collections.OrderedDict", VIEW)), "Python objects"),
    "a view as a pair": (
        pickle_of(call("collections.OrderedDict", b"]" + VIEW + b"a")),
        "Python objects",
    ),
    "a view as lengths": (pickle_of(call("torch.Size", VIEW)), "Python objects"),
    "a view as attributes": (
        pickle_of(named("argparse.Namespace") + b")\x81" + VIEW + b"b"),
        "Python objects",
    ),
    "a storage that the file lacks": (pickle_of(tensor(count=1 << 30)), "lacks some of its num"),
    "storages that it lacks": (
        pickle_of(b"]" + b"".join(tensor(key=str(n), count=99) + b"a" for n in range(99))),
        "lacks some of its num",
    ),
    "a shape beyond its storage": (pickle_of(tensor(length=1 << 30)), "lacks some of its num"),
    "a step beyond its storage": (pickle_of(tensor(step=1 << 30)), "lacks some of its num"),
    "an offset beyond its storage": (pickle_of(tensor(offset=1)), "lacks some of its num"),
    "a dict counted often": (
        pickle_of(b"](" + DICT + 99 * call("collections.Counter", b"h\x01") + b"e"),
        "repeats its items",
    ),
    "pairs taken often": (
        pickle_of(b"](" + PAIRS + 99 * call("collections.OrderedDict", b"h\x01") + b"e"),
        "repeats its items",
    ),
    **{
        f"its own {method}": (
            pickle_of(made + b"}(" + text(method) + number(1) + b"ub"),
            f"it has its own {method} in place of a dict's",
        )
        for method, made in (
            ("items", call("collections.OrderedDict")),
            ("keys", named("lightning.fabric.utilities.data.AttributeDict") + b")\x81"),
        )
    },
    "its own items, counted": (
        pickle_of(
            call("collections.OrderedDict")
            + call("collections.Counter", b"}(" + text("items") + number(1) + b"u")
            + b"b"
        ),
        "it has its own items in place of a dict's",
    ),
    "its own items, from pairs": (
        pickle_of(
            call("collections.OrderedDict")
            + call("collections.OrderedDict", b"]" + tuple_of(text("items"), number(1)) + b"a")
            + b"b"
        ),
        "it has its own items in place of a dict's",
    ),
    "attributes taken often": (
        pickle_of(b"](" + DICT + named("argparse.Namespace") + b")\x81" + 99 * b"h\x01b" + b"e"),
        "repeats its items",
    ),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", NEEDLESS)
def test_what_weights_do_not_need_is_refused(kind, zipped):
    content, why = NEEDLESS[kind]
    with pytest.raises(
        DataError, match=rf"^x\.pt: its weights .*{re.escape(why)}.*; save the .*\.$"
    ):
        parse_weights(in_file(content, zipped=zipped), "x.pt")


def test_what_training_scripts_store_beside_weights_is_read():
    module, schedule = torch.nn.Linear(2, 2), {"milestones": Counter([3, 9, 9])}
    beside = argparse.Namespace(lr=0.1, device=torch.device("cuda", 0), dtype=torch.bfloat16)
    beside.shape, beside.betas, beside.more = torch.Size((3, 4)), (0.9, 0.99), {"a": [1, None]}
    stored = {
        "state_dict": module.state_dict(),
        "hyper_parameters": AttributeDict(width=3, inner=AttributeDict()),
        "args": beside,
        "optimizer": torch.optim.Adam(module.parameters()).state_dict(),
        "schedule": schedule,
        "parameters": dict(module.named_parameters()),
        "names": {"items": 1, "keys": OrderedDict(values=2), "args": argparse.Namespace(copy=3)},
        "numbers": [torch.ones(2, dtype=kind) for kind in (torch.uint16, torch.float8_e5m2)],
        "views": [torch.arange(9.0).reshape(3, 3).T, torch.zeros(0, 3), torch.tensor(True)],
    }
    for zipped in (True, False):
        kept = {**stored, "numbers": []} if not zipped else stored
        content = saved(kept, zipped=zipped)
        assert parse_weights(content, "x.ckpt").keys() == module.state_dict().keys()
        found = unpickled(content, "x.ckpt", "")
        assert found["hyper_parameters"] == {"width": 3, "inner": {}}
        assert (found["args"], found["schedule"]) == (beside, schedule)
        assert isinstance(found["parameters"]["weight"], torch.nn.Parameter)
        assert torch.equal(found["views"][0], stored["views"][0])


def test_weights_of_python_2_are_read():
    """It gives a dict its items as a list of lists, and text in bytes."""
    where = tuple_of(
        b"U\x07storage", named("torch.FloatStorage"), b"U\x010", b"U\x03cpu", b"K\x03N"
    )
    made = call("torch._utils._rebuild_tensor", where + b"Q", b"K\0K\x03\x85K\x01\x85")
    ordered = call("collections.OrderedDict", b"]]U\x01a" + b"a" + made + b"aa")
    old = saved({"a": WEIGHTS["a"]}, zipped=False)
    key = re.search(rb"X(....)(\d+)q.X\x03\0\0\0cpu", old, re.DOTALL)[2]
    start, end = old.index(b"}q\x00X\x01\0\0\0a"), old.index(b"s.\x80\x02]") + 2
    ordered = ordered.replace(b"U\x010", b"U%c%s" % (len(key), key))
    content = old[:start] + ordered + b"." + old[end:]
    assert torch.equal(parse_weights(content, "x.pth")["a"], WEIGHTS["a"])


def test_numbers_that_an_old_file_leaves_out_are_missed():
    content = saved(WEIGHTS, zipped=False)
    keys = content.rindex(b"\x80\x02]q\x00(")
    with pytest.raises(DataError, match="it lacks some of its numbers"):
        parse_weights(content[:keys] + b"\x80\x02].", "x.pt")


def test_archives_are_not_inflated():
    assert parse_weights(in_file(b""), "x.pt").keys() == WEIGHTS.keys()
    with pytest.raises(DataError, match="its archive is compressed"):
        parse_weights(in_file(b"", compressed=True), "x.pt")


def test_an_archive_has_one_directory():
    """Of two, Python takes the one before the archive's end, and PyTorch the one that it names."""
    packed, plain = in_file(b"", compressed=True), in_file(b"")
    start, size = struct.unpack("<II", plain[-22:][12:20])[::-1]
    both = packed[:-22] + plain[start : start + size]
    end = plain[-22:-10] + struct.pack("<II", size, struct.unpack("<I", packed[-6:-2])[0]) + b"\0\0"
    with pytest.raises(DataError, match=r"its archive does not end like one of torch\.save"):
        parse_weights(both + end, "x.pt")
    with pytest.raises(DataError, match=r"its archive does not end like one of torch\.save"):
        parse_weights(b"before" + plain, "x.pt")


def test_the_state_that_a_trainer_keeps_is_looked_at_too():
    content = in_file(pickle_of(call("builtins.set", VIEW)))
    with pytest.raises(ContractError, match=r"neither tensors nor plain values; leave keep_opt"):
        _restore(None, torch.frombuffer(bytearray(content), dtype=torch.uint8))
