"""Clients that are tied to nodes, on a local Ray that no node will join: refused at once."""

import time

import pytest

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = pytest.mark.ray


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
