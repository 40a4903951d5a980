"""A Ray that a run starts is for this machine and this user alone."""

import ast
import os
import stat
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray

PROGRAM = """
import contextlib, http.client, ray, psutil, urllib.request
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect
config = ClusterConfig(num_actors=1)
connect(config)
ray.get(ray.remote(lambda: 1).remote())
here = psutil.Process()
found = set()
for process in [here, *here.children(recursive=True)]:
    with contextlib.suppress(psutil.NoSuchProcess):  # who only asks for a worker ends at once
        connections = process.net_connections("inet")
        found |= {c.laddr[:2] for c in connections if c.status == psutil.CONN_LISTEN}
told = set()
for _, port in found:
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2)
        told.add(port)
print(({place for place, _ in found}, told, is_token_auth_enabled()))
"""


@pytest.mark.ci
@pytest.mark.parametrize("earlier", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_listens_on_the_loopback_and_asks_for_a_token(tmp_path, earlier):
    token = tmp_path / ".ray" / "auth_token"
    if earlier:  # as Ray itself writes it
        token.parent.mkdir()
        token.write_text("a" * 64)
        token.chmod(0o644)
    unset = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, told, tokens = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert found
    assert found <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not told  # what Ray measures, without a token
    assert tokens
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
