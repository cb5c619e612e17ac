"""The manifests, read by those who will read them: Accelerate, and the models of Kubernetes and Kubeflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "assets"
TORCHRUN = {"standalone", "nnodes", "nproc-per-node", "max-restarts", "rdzv-backend", "rdzv-endpoint", "rdzv-id"}


def test_accelerate_reads_the_configuration(monkeypatch):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    file = str(ASSETS / "accelerate-fsdp2.yaml")
    config = load_config_from_file(file)
    assert config.num_processes == 8
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", file, "x.py"]))
    for name, value in prepare_multi_gpu_env(arguments).items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.activation_checkpointing is True
    assert plugin.cpu_ram_efficient_loading is True
    assert str(plugin.state_dict_type) == "StateDictType.SHARDED_STATE_DICT"
    assert "CPUOffload" not in type(plugin.cpu_offload).__name__


def unknown_fields(value, kind: str, where: str, models: list) -> list[str]:
    """Paths in a manifest that the API's own models do not have."""
    if match := re.fullmatch(r"(?:list\[|dict\(str, |dict\[str, )(.+)[\])]", kind):
        inner = match[1]
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [bad for key, item in items for bad in unknown_fields(item, inner, f"{where}.{key}", models)]
    model = next((getattr(module, kind) for module in models if hasattr(module, kind)), None)
    if model is None:  # a plain type
        expected = {"str": str, "int": int, "bool": bool}.get(kind, object)
        return [] if isinstance(value, expected) else [f"{where}: {value!r} is not a {kind}"]
    names = {outside: inside for inside, outside in model.attribute_map.items()}
    bad = [f"{where}.{key}" for key in value if key not in names]
    for key in set(value) & set(names):
        bad += unknown_fields(value[key], model.openapi_types[names[key]], f"{where}.{key}", models)
    return bad


def test_kubernetes_and_kubeflow_know_every_field():
    from kubeflow.training import models as kubeflow
    from kubernetes import client as kubernetes

    manifest = yaml.safe_load((ASSETS / "kubernetes-pytorchjob.yaml").read_text())
    models = [kubeflow, kubernetes]
    assert unknown_fields(manifest, "KubeflowOrgV1PyTorchJob", "job", models) == []
    manifest["spec"]["elasticPolicy"]["maxRestart"] = "3"
    assert unknown_fields(manifest, "KubeflowOrgV1PyTorchJob", "job", models) == ["job.spec.elasticPolicy.maxRestart"]


def test_the_manifest_hangs_together():
    spec = yaml.safe_load((ASSETS / "kubernetes-pytorchjob.yaml").read_text())["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert spec["nprocPerNode"] == container["resources"]["limits"]["nvidia.com/gpu"]
    assert spec["elasticPolicy"]["minReplicas"] == spec["elasticPolicy"]["maxReplicas"] == worker["replicas"]


@pytest.mark.parametrize("asset", sorted(path.name for path in ASSETS.glob("*.*")))
def test_options_of_the_templates_that_are_named_exist(asset):
    text = (ASSETS / asset).read_text()
    templates = "".join(path.read_text() for path in (ROOT / "scripts").glob("train_*.py"))
    known = set(re.findall(r'^    "([a-z-]+)": \(', templates, re.MULTILINE))
    shell = re.sub(r"^#SBATCH.*|srun .*?(?=torchrun|pkill)|--config_file", "", text, flags=re.MULTILINE)
    assert set(re.findall(r"--([a-z][a-z-]+)", shell)) <= known | TORCHRUN
    for script in re.findall(r"train_\w+\.py", text):
        assert (ROOT / "scripts" / script).is_file()
