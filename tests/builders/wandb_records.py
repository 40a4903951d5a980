"""Read what W&B wrote offline."""

import struct
import time


def wandb_records(path):
    """The records of a .wandb file: a LevelDB log of protobuf messages after a 7-byte header."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, message = path.read_bytes(), 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        position += 7 + length
        message += content[position - length : position]
        if kind in (1, 4) and position <= len(content):  # the whole message, or its last part
            yield Record.FromString(message)
            message = b""


def complete_wandb_records(path, patience_s=20.0):
    """All records: W&B's service may write its buffer some milliseconds after `finish` returned."""
    deadline = time.monotonic() + patience_s
    records = []
    while not any(record.HasField("exit") for record in records):
        assert time.monotonic() < deadline, f"the run was never ended in {path}"
        records = list(wandb_records(path))
    return records
