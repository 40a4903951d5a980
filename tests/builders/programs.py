"""Programs of networks as `torch.export.save` writes them, taken apart and changed."""

import io
import json
import zipfile

import torch

GRAPH = "models/model.json"
ANY_SIZE = ({0: torch.export.Dim("n")},)


def exported(network, batch, dynamic=ANY_SIZE):
    content = io.BytesIO()
    torch.export.save(torch.export.export(network, (batch,), dynamic_shapes=dynamic), content)
    return content.getvalue()


def parts_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(parts, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, part in parts.items():
            archive.writestr(f"m/{name}", part)
    return content.getvalue()


def with_graph(content, change):
    parts = parts_of(content)
    graph = json.loads(parts[GRAPH])
    change(graph)
    return packed({**parts, GRAPH: json.dumps(graph)})
