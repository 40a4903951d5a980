"""A Ray cluster on this machine whose autoscaler starts and ends node processes on demand.

`ray.cluster_utils.AutoscalingCluster` would end every Ray of the machine first, and Ray's wheel
lacks the config that it reads.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
HEAD = "f" * 51 + "00000"


class Autoscaled:
    """A head without slots, with token authentication, and up to two workers of one CPU.

    Args:
        folder: For the token, the config and logs.
        version: Of Ray's autoscaler: 1, of its cluster launcher, or 2, of KubeRay.
    """

    def __init__(self, folder: Path, version: int) -> None:
        self._folder = folder
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_worker_niceness": "0",
        }
        port = _free_port()
        host = socket.gethostbyname(socket.gethostname())
        self.address = f"{host}:{port}"
        config = folder / "cluster.json"
        config.write_text(json.dumps(self._config(version)))
        command = (
            *(Path(sys.executable).with_name("ray"), "start", "--head", "--block"),
            *(f"--port={port}", f"--node-ip-address={host}", "--num-cpus=0"),
            *("--include-dashboard=false", "--object-store-memory=100000000"),
            *(f"--autoscaling-config={config}", f"--temp-dir={_short(folder)}"),
        )
        with (folder / "head.log").open("w") as log:
            self._head = subprocess.Popen(
                command,
                env={**self.environment, **self._emulated(version)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def workers(self) -> int:
        """Number of nodes besides the head."""
        names = [process.name() for process in self._processes()]
        return max(0, names.count("raylet") - 1)

    def wait_until_up(self) -> None:
        """Wait until the head answers."""
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 60
        while not _answers(host, int(port)):
            assert time.monotonic() < deadline, (self._folder / "head.log").read_text()
            time.sleep(0.2)

    def close(self) -> None:
        """End the head and all that it has started, and nothing else."""
        for process in [*self._processes(), psutil.Process(self._head.pid)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._head.wait(30)

    def _processes(self) -> list[psutil.Process]:
        return psutil.Process(self._head.pid).children(recursive=True)

    def _emulated(self, version: int) -> dict[str, str]:
        """What the machine of a head has in its environment."""
        common = {
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_NODE_TYPE_NAME": "ray.head.default",
        }
        ids = {"RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
        return {**common, **({"RAY_enable_autoscaler_v2": "1", **ids} if version == 2 else {})}

    def _config(self, version: int) -> dict[str, object]:
        provider: dict[str, object] = {
            "type": "external" if version == 2 else "fake_multinode",
            "module": PROVIDER,
            "gcs_address": self.address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": version == 2,
            "head_node_id": HEAD,
        }
        worker = {"CPU": 1, "object_store_memory": 80 * 2**20}
        commands = ("initialization", "setup", "head_setup", "worker_setup")
        return {
            "cluster_name": "elastic",
            "max_workers": 2,
            "idle_timeout_minutes": 0.05,
            "upscaling_speed": 10,
            "provider": provider,
            "available_node_types": {
                "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
                "worker": {"resources": worker, "node_config": {}, "max_workers": 2},
            },
            "head_node_type": "ray.head.default",
            **{f"{name}_commands": [] for name in commands},
            **{f"{name}_start_ray_commands": [] for name in ("head", "worker")},
            **{name: {} for name in ("auth", "docker", "file_mounts")},
            **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
            "file_mounts_sync_continuously": False,
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def _short(folder: Path) -> Path:
    """A folder whose name leaves room for the names of sockets, of 107 characters."""
    return Path("/tmp") / f"coterie-{folder.name[-12:]}"
