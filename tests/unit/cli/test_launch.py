import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

from agentrl.cli.dispatch import main

RUN = 'name = "night"\n[[env]]\nname = "calculator"\n'
KUBERNETES = ["kubernetes", "run.toml", "--image", "repo/image:1", "--volume", "runs"]
ON_GPUS = '[trainer]\ndevice = "cuda"\nranks = 15\n'
SERVERS = '[engine]\nkind = "sglang"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, on a machine without programs of a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["launch", *arguments, "--print"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("slrm run.toml", "launch slrm: unknown cluster, did you mean slurm?"),
        ("slurm", "launch: got no RUN.toml, expected one"),
        ("slurm no.toml", "no.toml: no such file, expected a TOML file"),
        ("slurm typo.toml", "typo.toml: stpes: unknown key, did you mean steps?"),
        ("slurm empty.toml", "no environment is given"),
        ("slurm name.toml", "--name: got 'a b', expected letters"),
        ("slurm apart.toml", "trainer.executor: got processes, but on a cluster"),
        ("slurm run.toml", "launch slurm: there is no sbatch on the PATH"),
        (" ".join(KUBERNETES), "launch kubernetes: there is no kubectl on the PATH"),
        ("ray-job run.toml", "launch ray-job: there is no ray on the PATH"),
        ("slurm run.toml --nodes 0", "--nodes: got 0, expected a number of at least 1"),
        ("slurm run.toml --nodes -3", "--nodes: got -3, expected a number of at least 1"),
        ("slurm run.toml --nodes 1.5", "--nodes: got 1.5, expected an integer"),
        ("slurm run.toml --nodes two", '--nodes: got "two", expected an integer'),
        ("slurm run.toml --nodes 99999", "--nodes: got 99999, expected a number of at most"),
        ("slurm run.toml --hours nan", "--hours: "),
        ("slurm run.toml --partition=a\nb", "--partition: got 'a\\nb', expected no blanks"),
        ("slurm run.toml --sbatch rm", "--sbatch: got 'rm', expected words such as --account=a"),
        ("slurm run.toml --image x", "--image: got one with launch slurm, which takes none"),
        ("ray-job run.toml --cpus-per-node 2", "--cpus-per-node: got one with launch ray-job"),
        ("kubernetes run.toml --volume v", "--image: got none, and pods need one"),
        ("slurm run.toml --server-gpus 2", "--server-gpus: got 2, but a node has 0"),
        ("slurm gpus.toml", "15 ranks ask for 15 CPU, but --nodes 1 leaves 8"),
        ("slurm gpus.toml --nodes 2", "15 ranks ask for 15 GPU, but --nodes 2 leaves 0"),
        (
            "slurm servers.toml --nodes 2 --gpus-per-node 8",
            "--server-gpus: got 0, but servers of sglang sample on the first node",
        ),
        (
            "slurm servers.toml --nodes 2 --gpus-per-node 8 --server-gpus 2",
            "15 ranks ask for 15 GPU, but --nodes 2 leaves 14; give more nodes",
        ),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: str, said: str
) -> None:
    (folder / "typo.toml").write_text(f"stpes = 1\n{RUN}")
    (folder / "empty.toml").write_text("steps = 1\n")
    (folder / "name.toml").write_text(RUN.replace("night", "a b"))
    (folder / "apart.toml").write_text(f'{RUN}[trainer]\nexecutor = "processes"\n')
    (folder / "gpus.toml").write_text(RUN + ON_GPUS)
    (folder / "servers.toml").write_text(RUN + ON_GPUS + SERVERS)
    assert main(["launch", *arguments.split(" ")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentrl: error: ")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (folder / "launches").exists()
    assert not (folder / "runs").exists()


def test_a_slurm_script_asks_for_what_was_given(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    options = "--nodes 2 --cpus-per-node 16 --gpus-per-node 8 --server-gpus 2 --memory-gb 64"
    more = ["--partition", "long", "--hours", "1.5", "--sbatch=--account=a --qos=b"]
    script = printed(capsys, "slurm", "run.toml", *options.split(), *more)
    asked = [line[8:] for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert asked == [
        *("--job-name=agentrl-night", "--output=agentrl-night-%j.log", "--open-mode=append"),
        *("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--gpus-per-node=8"),
        *("--mem=64G", "--partition=long", "--time=90", "--requeue", "--signal=B:USR1@120"),
        *("--account=a", "--qos=b"),
    ]
    done = subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=False)
    assert done.returncode == 0


def test_a_run_without_a_name_gets_one_that_its_script_keeps(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "run.toml").write_text(RUN.replace('name = "night"\n', ""))
    names = [json.loads(printed(capsys, "slurm", "run.toml", "--json"))["name"] for _ in range(2)]
    assert names[0] != names[1]
    assert all(name.startswith("run-") for name in names)


def test_a_path_with_blanks_and_quotes_stays_one_word(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = folder / "it's $HOME"
    odd.mkdir()
    (odd / "my run.toml").write_text(RUN)
    monkeypatch.chdir(odd)
    script = printed(capsys, "ray-job", "my run.toml")
    begins = ["train", str(odd / "my run.toml"), "--name", "night"]
    shown = [str(odd), *begins, "--runs-dir", str(odd / "runs"), "--executor", "ray"]
    make_program(folder, "agentrl", 'pwd; printf "%s\\n" "$@"')
    assert subprocess.check_output(["/bin/bash", "-c", script], text=True).splitlines()[:9] == shown
    (odd / "runs" / "night").mkdir(parents=True)
    (odd / "runs" / "night" / "config.toml").touch()
    shown[1:5] = ["train", "--resume", "night"]
    assert subprocess.check_output(["/bin/bash", "-c", script], text=True).splitlines()[:8] == shown


def test_a_manifest_has_what_kuberay_needs(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--nodes 3 --cpus-per-node 4 --gpus-per-node 8 --server-gpus 2 --memory-gb 32"
    text = printed(capsys, *KUBERNETES, *options.split())
    manifest = yaml.safe_load(text)
    assert manifest == json.loads(text)
    files, job = manifest["items"]
    assert (files["apiVersion"], files["kind"]) == ("v1", "ConfigMap")
    assert files["data"]["run.toml"] == RUN
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"] == "agentrl-night"
    spec = job["spec"]
    assert spec["entrypoint"] == "bash /etc/agentrl/run.sh"
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["entrypointNumGpus"] == 2
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] == 3
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    counts = {workers[key] for key in ("replicas", "minReplicas", "maxReplicas")}
    assert counts == {2}
    for group in (cluster["headGroupSpec"], workers):
        assert isinstance(group["rayStartParams"], dict)
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "repo/image:1"
        assert container["resources"]["limits"] == {
            "cpu": 4,
            "memory": "32Gi",
            "nvidia.com/gpu": 8,
        }
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
        assert pod["volumes"][1]["configMap"] == {"name": files["metadata"]["name"]}
    alone = yaml.safe_load(printed(capsys, *KUBERNETES))["items"][1]["spec"]
    assert alone["rayClusterSpec"]["workerGroupSpecs"] == []


def make_program(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / "bin" / name).chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("arguments", "submitted"),
    [
        (["slurm", "run.toml"], "sbatch LAUNCHES/night.slurm"),
        (KUBERNETES, "kubectl create -f LAUNCHES/night.json"),
        (
            ["ray-job", "run.toml", "--address", "http://a:8265", "--server-gpus", "2"],
            "ray job submit --no-wait --address=http://a:8265 --entrypoint-num-gpus=2 "
            "-- bash LAUNCHES/night.sh",
        ),
    ],
)
def test_what_is_written_is_submitted_and_the_answer_shown(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], submitted: str
) -> None:
    program = submitted.split()[0]
    make_program(folder, program, 'echo "got ${0##*/} $*"')
    text = printed(capsys, *arguments)
    assert main(["launch", *arguments]) == 0
    out = capsys.readouterr().out
    assert f"got {submitted.replace('LAUNCHES', str(folder / 'launches'))}\n" in out
    (file,) = (folder / "launches").iterdir()
    assert file.read_text().rstrip("\n") == text.rstrip("\n")
    make_program(folder, program, 'echo "no such account" >&2; exit 3')
    assert main(["launch", *arguments]) == 1
    assert f"{program} refused {file}: no such account" in capsys.readouterr().err


def test_a_script_parts_the_devices_of_the_first_node(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    make_program(folder, "agentrl", 'echo "$CUDA_VISIBLE_DEVICES" > devices')
    make_program(folder, "python", "exit 0")
    make_program(folder, "ray", 'echo "$CUDA_VISIBLE_DEVICES: $*" >> rays')
    make_program(folder, "srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    nodes = "--nodes 2 --gpus-per-node 4 --server-gpus 1"
    text = printed(capsys, "slurm", "run.toml", *nodes.split())
    # Here the programs stand beside the script, and no head opens its port.
    text = text.replace("\nprograms=", f"\nprograms={folder / 'bin'} #").replace(
        "join_s=300", "join_s=0"
    )
    done = subprocess.run(
        ["/bin/bash", "-c", text],
        env={
            "SLURM_JOB_ID": "7",
            "CUDA_VISIBLE_DEVICES": "4,5,6,7",
            "PATH": "/usr/bin:/bin",
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "devices").read_text() == "4\n"
    head, worker = sorted((folder / "rays").read_text().splitlines(), key=len, reverse=True)
    assert head.startswith("5,6,7: start --head")
    assert "--num-gpus=3 " in head
    assert worker.startswith("4,5,6,7: start --address=")
    assert "--num-gpus=4 " in worker
