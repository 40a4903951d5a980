#!/usr/bin/env bash
#SBATCH --job-name=coterie
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --output=coterie-%j.log
#
# A Ray cluster with a token on a SLURM job's nodes, and one run on it. A client takes a CPU too, so
# a node with 4 GPUs in quarters needs 16, and some for Ray. In the checkout, which all nodes see,
# with Coterie's environment active:
#
#   export COTERIE_DATA=/shared/data WANDB_API_KEY=…    # W&B is offline without a key
#   sbatch --gpus-per-node=4 deploy/slurm.sh experiment=fedmcc_cifar10 tracking=wandb \
#       cluster.gpus_per_client=0.25 run_dir=$PWD/runs/first
#
# Without GPUs: sbatch deploy/slurm.sh experiment=concord_mnist run_dir=$PWD/runs/mnist
#
# Two minutes before the time limit, and when the job is preempted, the run writes a checkpoint. A
# job that is requeued, or submitted again with the same run_dir, goes on from it.
set -euo pipefail

# Of this job's own: other jobs may share a node.
export PORT=$((20000 + SLURM_JOB_ID % 100 * 100)) HEAD
HEAD=$(hostname)
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_ADDRESS=$HEAD:$PORT

start_node() {  # once on each node, by srun
    folder=$(mktemp -d "${RAY_TMPDIR:-/tmp}/ray-$SLURM_JOB_ID-XXXXXX") over=""  # for this user alone
    trap 'over=yes' TERM  # which Ray gets too
    trap 'rm -rf "$folder"' EXIT
    own=(--block --disable-usage-stats --temp-dir="$folder/ray"
        --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}"
        --dashboard-agent-listen-port=$((PORT + 1 + SLURM_PROCID)))
    if [ "$SLURM_PROCID" = 0 ]; then
        ray start --head --port="$PORT" "${own[@]}"
    else
        until ray start --address="$RAY_ADDRESS" "${own[@]}" || [ "$over" ]; do sleep 2; done
    fi
}
export -f start_node
# srun takes over neither the CPUs of a task nor, at some sites, the environment.
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    --export=ALL bash -c start_node >"ray-$SLURM_JOB_ID.log" 2>&1 &
nodes=$!
trap 'kill "$nodes" && wait "$nodes" || true' EXIT

joined() { ray status 2>/dev/null | grep -c '^ 1 node_'; }
until [ "$(joined)" = "$SLURM_NNODES" ]; do
    kill -0 "$nodes" || exit 1
    sleep 2
done

python -m ray_jobs.train resume=true "$@" &
run=$!
trap 'kill -TERM "$run"' TERM
status=0
wait "$run" || status=$?
if kill -0 "$run" 2>/dev/null; then wait "$run" || status=$?; fi  # the signal ended the first wait
exit "$status"
