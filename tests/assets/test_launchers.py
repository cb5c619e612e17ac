"""The launchers do what they say: real torchrun on CPU processes, stubs for Slurm's commands."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "assets"
SHELL = sorted([*ASSETS.glob("*.sh"), *ASSETS.glob("*.sbatch")])
SMALL = ["--steps", "3", "--seq-len", "16", "--micro-batch", "1", "--export", "none"]


@pytest.fixture
def environment(tmp_path):
    """A PATH on which torchrun and python are those of the tests, and a folder for stubs comes first."""
    (tmp_path / "bin").mkdir()
    path = [tmp_path / "bin", Path(sys.executable).parent, os.environ["PATH"]]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **quiet, "PATH": ":".join(map(str, path))}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_bash_can_read_it(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(600)
def test_one_node(tmp_path, environment):
    done = subprocess.run(
        ["bash", ASSETS / "torchrun-one-node.sh", ROOT / "scripts" / "train_fsdp2.py", *SMALL],
        cwd=tmp_path, env={**environment, "GPUS": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 3  loss " in done.stdout
    assert (tmp_path / "checkpoints" / "step-00000003").is_dir()


@pytest.mark.timeout(600)
def test_two_nodes(tmp_path, environment):
    settings = {"GPUS": "1", "NODES": "2", "JOB": "two", "RENDEZVOUS": f"localhost:{free_port()}"}
    command = ["bash", ASSETS / "torchrun-many-nodes.sh", ROOT / "scripts" / "train_fsdp2.py", *SMALL]
    nodes = [
        subprocess.Popen(
            command, cwd=tmp_path, env={**environment, **settings}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [node.communicate(timeout=550)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "step 3  loss " in "".join(outputs)


def test_many_nodes_says_what_it_needs(tmp_path, environment):
    done = subprocess.run(
        ["bash", ASSETS / "torchrun-many-nodes.sh"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "NODES: how many nodes, such as 2" in done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sent", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_slurm_saves_before_the_end_and_queues_again(tmp_path, environment, sent, requeued):
    """`srun` starts what it is given on this machine, once; `scontrol` keeps a record."""
    stub(
        tmp_path,
        "srun",
        f'#!/bin/bash\necho "srun $*" >> {tmp_path}/calls\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    )
    stub(
        tmp_path,
        "scontrol",
        f'#!/bin/bash\necho "scontrol $*" >> {tmp_path}/calls\n[[ $1 != show ]] || echo localhost\n',
    )
    script = tmp_path / "train_fsdp2.py"  # a path that no other process has in its command
    script.write_text((ROOT / "scripts" / "train_fsdp2.py").read_text())
    slurm = {"SLURM_JOB_ID": str(free_port()), "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node[0-1]"}
    metrics = tmp_path / "metrics.jsonl"
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            ["bash", ASSETS / "slurm-fsdp2.sbatch", *SMALL[2:], "--steps", "100000", "--metrics", metrics],
            cwd=tmp_path, env={**environment, **slurm, "SCRIPT": str(script), "GPUS": "2"},
            stdout=log, stderr=log,
        )  # fmt: skip
        while not (metrics.is_file() and metrics.read_text().count("\n") >= 2):
            assert job.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        job.send_signal(sent)
        assert job.wait(timeout=550) == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    step = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert f"after step {step}; last checkpoint: checkpoints/step-{step:08d}" in said
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "scontrol show hostnames node[0-1]"
    assert re.fullmatch(
        r"srun --kill-on-bad-exit=1 torchrun --nnodes 1 --nproc-per-node 2 --max-restarts 3 .*", calls[1]
    )
    assert calls[2] == f"srun --overlap --nodes=1 --ntasks=1 pkill -USR1 -f [-]u {script}"
    assert calls[3:] == ([f"scontrol requeue {slurm['SLURM_JOB_ID']}"] if requeued else [])
