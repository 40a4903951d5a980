"""The manifests of deploy/, against the schemas of Ray's launcher and of KubeRay.

`kuberay.json` is KubeRay's published schema. Unknown fields are refused here, which a Kubernetes
server would drop. Its rules in CEL (`x-kubernetes-validations`) are not checked, and the volume
claim's schema is Kubernetes' own, of which nothing is checked but its name.
"""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start

from coterie import compose
from coterie.config import target_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERAY = json.loads((Path(__file__).parent / "kuberay.json").read_text())


def strict(schema):
    """The schema, where objects have no other fields than the named ones."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(part) for key, part in schema.items()}
    named = isinstance(schema.get("properties"), dict)
    if named and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def manifest(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def validate(document):
    schema = {**strict(KUBERAY[document["kind"]]), "$defs": strict(KUBERAY["$defs"])}
    jsonschema.Draft202012Validator(schema).validate(document)


def volumes():
    return list(yaml.safe_load_all((DEPLOY / "kuberay/runs.yaml").read_text()))


def cluster_specs():
    return [
        manifest("kuberay/raycluster.yaml")["spec"],
        manifest("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"],
    ]


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_kuberay_takes_the_manifest(name):
    validate(manifest(f"kuberay/{name}.yaml"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("autoscalerOptions", "version"), "v3"),
        (("authOptions", "mode"), "none"),
        (("headGroupSpec", "rayStartParams"), None),
        (("workerGroups",), []),
    ],
)
def test_the_schema_refuses_what_kuberay_would(path, value):
    wrong = manifest("kuberay/raycluster.yaml")
    *parents, last = path
    place = wrong["spec"]
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong)


def test_the_job_has_the_cluster_of_the_other_manifest():
    one, other = cluster_specs()
    assert one == other


@pytest.mark.parametrize("spec", cluster_specs(), ids=["cluster", "job"])
def test_the_cluster_has_a_token_an_idle_head_spot_workers_and_volumes(spec):
    assert f"ray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    assert spec["authOptions"]["mode"] == "token"
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["version"] == "v2"
    head = spec["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    of_cpus, of_gpus = (group["template"]["spec"] for group in spec["workerGroupSpecs"])
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == 0 < group["maxReplicas"]
        assert "cloud.google.com/gke-spot" in group["template"]["spec"]["nodeSelector"]
    assert "nvidia.com/gpu" not in of_cpus["containers"][0]["resources"]["limits"]
    assert "nvidia.com/gpu" in of_gpus["containers"][0]["resources"]["limits"]
    pod = head["template"]["spec"]
    claims = [one["metadata"]["name"] for one in volumes()]
    assert [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"]] == claims
    container = pod["containers"][0]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {"runs": "/runs", "data": "/data", "secret": "/secret"}
    variables = {one["name"]: one for one in container["env"]}
    assert variables["COTERIE_RUNS"]["value"] == "/runs"
    assert variables["COTERIE_DATA"]["value"] == "/data"
    assert variables["WANDB_API_KEY"]["valueFrom"]["secretKeyRef"]["optional"]


def test_the_jobs_entrypoint_is_a_run_that_goes_on_where_it_was():
    spec = manifest("kuberay/rayjob.yaml")["spec"]
    command = shlex.split(spec["entrypoint"].removesuffix(" || [ $? -eq 3 ]"))
    assert command[:3] == ["python", "-m", "ray_jobs.train"]
    config = compose(*command[3:])
    assert config.resume
    assert str(config.run_dir).startswith("/runs/")
    assert target_of(config.data) == "coterie.datamodules.mnist:MNIST"
    assert spec["backoffLimit"] > 0
    shipped = yaml.safe_load((ROOT / "ray_jobs" / "runtime_env.yaml").read_text())["env_vars"]
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"].items() <= shipped.items()


@pytest.mark.parametrize(("code", "failed"), [(0, False), (3, False), (1, True), (130, True)])
def test_a_run_that_dropped_clients_is_not_tried_again(code, failed):
    entrypoint = manifest("kuberay/rayjob.yaml")["spec"]["entrypoint"]
    _, mark, rest = entrypoint.partition("||")
    assert mark
    # as Ray's job supervisor runs it: by a shell
    ended = subprocess.run(f"(exit {code}) {mark}{rest}", shell=True, check=False)
    assert (ended.returncode != 0) is failed


def test_the_image_has_what_its_cluster_and_the_page_ask_for():
    text = (DEPLOY / "Dockerfile").read_text()
    assert '".[faiss-$FAISS,$EXTRAS]"' in text
    extras = set(re.search(r"ARG EXTRAS=(.*)", text)[1].split(","))
    assert extras >= {"aws", "remote", "tune", "timm", "dp"}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras | {"faiss-cpu", "faiss-gpu"} <= known.keys()


def launched():
    return manifest("cluster.yaml")


def test_rays_launcher_takes_the_cluster():
    validate_config(prepare_config(launched()))


def test_rays_launcher_would_refuse_another_key():
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config({**launched(), "workers": 2}))


def test_the_launched_cluster_has_a_token_an_idle_head_spot_workers_and_a_volume():
    config = launched()
    kinds = config["available_node_types"]
    head, workers = kinds["head"], [kinds[name] for name in ("spot_gpu", "spot_cpu")]
    assert head["resources"] == {"CPU": 0}
    for node in (head, *workers):  # Ray's own choice is of 2023, too old for CUDA 13
        assert node["node_config"]["ImageId"].startswith("ami-")
    for node in workers:
        assert node["min_workers"] == 0 < node["max_workers"]
        assert node["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert workers[1]["docker"] == {"worker_image": config["docker"]["head_image"]}
    assert config["file_mounts"] == {"/root/.ray/auth_token": "~/.ray/auth_token"}
    options = set(config["docker"]["head_run_options"])
    assert {"--volume /home/ubuntu/runs:/runs", "--env COTERIE_RUNS=/runs"} <= options
    assert {"--volume /home/ubuntu/data:/data", "--env COTERIE_DATA=/data"} <= options
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    asked = [line for line in starts if "ray start" in line]
    assert len(asked) == 2
    assert all(line.startswith("RAY_AUTH_MODE=token ") for line in asked)
    assert "RAY_enable_autoscaler_v2=1" in asked[0]


def examples():
    """Each file and the arguments of a run that its comment gives."""
    for name in ("cluster.yaml", "slurm.sh", "kuberay/raycluster.yaml"):
        text = re.sub(r"\\\n#\s*", "", (DEPLOY / name).read_text())
        for line in re.findall(r"experiment=\S+(?: [\w.]+=\S+)*", text):
            yield name, line.rstrip(".").replace("$PWD", "/shared")


@pytest.mark.parametrize(("name", "arguments"), [*examples()])
def test_an_example_trains_on_real_data_into_a_folder_that_stays(name, arguments):
    config = compose(*arguments.split())
    assert target_of(config.data).partition(":")[0].rpartition(".")[2] in {"mnist", "cifar10"}
    assert str(config.run_dir).startswith("/shared/" if name == "slurm.sh" else "/runs/")


def test_each_file_has_an_example():
    assert [*dict(examples())] == ["cluster.yaml", "slurm.sh", "kuberay/raycluster.yaml"]


def test_slurms_script_asks_for_cpus_and_memory():
    asked = re.findall(r"^#SBATCH --([\w-]+)", (DEPLOY / "slurm.sh").read_text(), re.MULTILINE)
    assert {"cpus-per-task", "mem", "time", "requeue", "signal"} <= set(asked)


def ray_starts():
    found = []
    for name in ("deploy/cluster.yaml", "deploy/slurm.sh", "deploy/local_cluster.sh"):
        text = re.sub(r"\\\n\s*", " ", (ROOT / name).read_text())
        text = text.replace('python -c "$ray_start" start', "ray start")
        text = re.sub(r"(ray start[^\n]*)\n\s+(--[^\n]*)\n\s+(--[^\n]*)", r"\1 \2 \3", text)
        found += [(name, line) for line in re.findall(r"\bray start ([^\n;>&]*)", text)]
    return found


@pytest.mark.parametrize(("name", "options"), ray_starts())
def test_ray_start_has_these_options(name, options):
    known = {option for parameter in start.params for option in parameter.opts}
    asked = {word.split("=")[0] for word in shlex.split(options) if word.startswith("--")}
    assert asked
    assert asked <= known
