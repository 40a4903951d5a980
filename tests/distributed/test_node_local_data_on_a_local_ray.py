"""Clients that are tied to nodes, on a local Ray that no node will join: refused at once."""

import time

import pytest
from PIL import Image

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = pytest.mark.ray


def test_more_clients_than_cpus_share_them(cluster, tmp_path):
    clients = {f"site_{n}": tmp_path / f"site_{n}" for n in range(7)}
    for number, folder in enumerate(clients.values()):
        folder.mkdir()
        for shade in range(3):
            Image.new("L", (8, 8), 30 * number + shade).save(folder / f"{shade}.png")
    view = Silent()
    config = compose(
        "experiment=kmeans",
        "data=node_local",
        f"data.clients={{{','.join(f'{name}: {path}' for name, path in clients.items())}}}",
        "data.source={target: coterie.datamodules.folders:ImageFolder, mode: L}",
        "method.clusters=2",
        "method.iterations=1",
        f"run_dir={tmp_path / 'run'}",
        "cluster.start_timeout_s=120",
    )
    assert Federation(config, view).run().exit_code == 0
    assert (
        "The data's 7 clients share this machine's 6 CPUs, as with cluster.cpus_per_client=0.85."
    ) in view.notes


def test_a_resource_that_a_local_ray_lacks_is_not_waited_for(cluster, tmp_path):
    config = compose(
        *SMALL,
        "data=node_local",
        "~data.limit",
        f"run_dir={tmp_path / 'run'}",
        "data.clients={site_a: /data/a, site_b: /data/b}",
        "data.source={target: coterie.datamodules.folders:ClassFolders, size: 32}",
        "cluster.client_resources={site_a: 1, site_b: 1}",
        "cluster.start_timeout_s=20",
    )
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        Federation(config, Silent()).run()
    assert str(caught.value) == (
        "cluster.client_resources: the local Ray that was started here has no {'site_a': 1.0} for "
        "client site_a; start Ray with --resources='{\"site_a\": 1.0}' on its node, and give "
        "cluster.address=auto."
    )
    assert time.monotonic() - began < 10
