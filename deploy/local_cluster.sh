#!/usr/bin/env bash
# A Ray cluster of three nodes on this machine, for one job; `make cluster` runs it.
#
#   deploy/local_cluster.sh [arguments of ray_jobs.train]
#
# It listens on the loopback only and has a token, ports and a folder of its own, so that it stands
# beside any other Ray. Ctrl-C stops the job, which writes a checkpoint first. Nothing is left but
# the run directory, in COTERIE_RUNS or runs/.
set -euo pipefail
cd "$(dirname "$0")/.."

# A short path, for sockets, in which no other user can rename anything.
folder=$(python - <<'FOLDER'
import sys

from coterie.distributed.session_folder import new_folder, remove_left
from coterie.errors import CoterieError

try:
    remove_left()
    print(new_folder())
except CoterieError as error:
    sys.exit(str(error))
FOLDER
)
if command -v flock >/dev/null; then  # once it is free, the next start removes what was left
    exec 9<>"$folder/lock"
    flock 9
fi
nodes=()
job=""

finish() {
    trap - EXIT INT TERM
    if [ -n "$job" ]; then ray job stop --address "$dashboard" "$job" || true; fi
    for node in "${nodes[@]}"; do kill "$node" 2>/dev/null || true; done
    wait
    for _ in 1 2 3 4 5; do  # a last process of Ray's may be writing there
        rm -rf "$folder" 2>/dev/null && return
        sleep 1
    done
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

# With 0, Ray's processes listen on the loopback alone, as on macOS, where `ray start` joins no
# other node; here it may. It would then take the address that the network knows this machine by,
# and port 10001 for Ray Client, without which it ends: any other Ray or user may have that.
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
ray_start='
from ray._private import ray_constants, services
ray_constants.ENABLE_RAY_CLUSTER = True
services.node_ip_address_from_perspective = lambda address=None: "127.0.0.1"
from ray.scripts import scripts
scripts.get_ray_client_dependency_error = lambda: "not used"
scripts.main()
'

# With a folder of its own: nodes would delete each other's copies of the job's code. Ray's parts
# leave what they put into TMPDIR.
start_node() {
    TMPDIR=$folder python -c "$ray_start" start --block --disable-usage-stats --node-ip-address=127.0.0.1 \
        --object-store-memory=300000000 --temp-dir="$folder/${#nodes[@]}" \
        --dashboard-agent-listen-port="$1" "${@:2}" >>"$folder/nodes.log" 2>&1 9>&- &
    nodes+=($!)
}

wait_for() {  # that a command succeeds, for 2 minutes
    for _ in $(seq 120); do
        if "$@" >>"$folder/wait.log" 2>&1; then return; fi
        for node in "${nodes[@]}"; do
            kill -0 "$node" 2>/dev/null || { cat "$folder/nodes.log" >&2; exit 1; }
        done
        sleep 1
    done
    echo "The cluster did not start within 2 minutes: $(tail -n 1 "$folder/wait.log")" >&2
    exit 1
}

have_started() {  # one after the other: Ray gives a node 30 seconds, on however busy a machine
    [ "$(grep -c "Ray runtime started" "$folder/nodes.log")" = "$1" ]
}

is_ours() {  # whether we listen on a port: another user could get the token there
    python - "$1" <<'LISTENERS'
import os
import sys
from pathlib import Path

port, listens = f":{int(sys.argv[1]):04X}", "0A"
tables = [path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()]
rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
users = {int(row[7]) for row in rows if row[1].endswith(port) and row[3] == listens}
if users - {os.getuid()}:
    sys.exit(f"another user listens on port {sys.argv[1]}; start again.")
sys.exit(bool(tables) and not users)
LISTENERS
}

# Ray hands 10002-19999 to its workers; the system hands out ports from 32768.
read -r gcs http agent1 agent2 agent3 < <(python - <<'PORTS'
import socket

held = [socket.socket() for _ in range(5)]
for probe in held:
    probe.bind(("127.0.0.1", 0))
print(*(probe.getsockname()[1] for probe in held))
PORTS
)
dashboard=http://127.0.0.1:$http

(umask 077; HOME=$folder ray get-auth-token --generate >"$folder/wait.log" 2>&1)
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/.ray/auth_token
export COTERIE_RUNS=${COTERIE_RUNS:-$PWD/runs}
unset RAY_ADDRESS

echo "Starting a cluster of three nodes; its dashboard is $dashboard."
start_node "$agent1" --head --num-cpus=0 --port="$gcs" --dashboard-host=127.0.0.1 \
    --dashboard-port="$http"
wait_for is_ours "$http"
wait_for is_ours "$agent1"
wait_for ray job list --address "$dashboard"
for agent in "$agent2" "$agent3"; do
    start_node "$agent" --address="127.0.0.1:$gcs" --num-cpus=1
    wait_for have_started "${#nodes[@]}"
    wait_for is_ours "$agent"
done

job=coterie-$$
ray job submit --address "$dashboard" --submission-id "$job" --working-dir . \
    --runtime-env ray_jobs/runtime_env.yaml -- \
    env TMPDIR="${TMPDIR:-/tmp}" python -m ray_jobs.train "${@:-experiment=concord_digits}" 9>&- &
status=0
wait $! || status=$?
job=""
exit "$status"
