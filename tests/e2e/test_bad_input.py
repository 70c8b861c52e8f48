"""Bad input: one clear sentence and exit code 2, before torch is even imported."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULES = {
    "no_import.py": "import not_there_at_all\n\nclass MyEnv: ...\n",
    "no_hint.py": (
        "from agentrl.envs import ToolEnv\nfrom agentrl.tools import tool\n\n"
        "class MyEnv(ToolEnv):\n    verifier = 'exact_match'\n    tasks = ()\n\n"
        "    @tool\n    def look(self, where) -> str:\n"
        '        """Look.\n\n        Args:\n            where: a place.\n        """\n'
        '        return ""\n'
    ),
    "no_docstring.py": (
        "from agentrl.envs import ToolEnv\nfrom agentrl.tools import tool\n\n"
        "class MyEnv(ToolEnv):\n    verifier = 'exact_match'\n    tasks = ()\n\n"
        "    @tool\n    def look(self, where: str) -> str:\n        return where\n"
    ),
    "no_tasks.py": (
        "from agentrl.envs import ToolEnv\n\nclass MyEnv(ToolEnv):\n    verifier = 'exact_match'\n"
    ),
    "image.py": (
        "from agentrl.envs import ToolEnv\nfrom agentrl.types import Message, Task\n\n"
        "class MyEnv(ToolEnv):\n    verifier = 'exact_match'\n"
        "    image = Message(role='user', content=[{'type': 'image'}])\n"
        "    tasks = [Task(prompt=(image,), answer=1)]\n"
    ),
    "own_init.py": (
        "from agentrl.envs import ToolEnv\n\nclass MyEnv(ToolEnv):\n"
        "    verifier = 'exact_match'\n    tasks = ({'prompt': 'p'},)\n\n"
        "    def __init__(self):\n        pass\n"
    ),
    "rules.py": "class NoScore: ...\n",
    "parts.py": "def halves(batch):\n    return batch.rewards_E / 2\n",
    "broken.toml": "steps = = 3\n",
    "typo.toml": "[trainer.clip]\nhihg = 0.3\n",
}
CALCULATOR = ["--env", "calculator"]


@dataclass(frozen=True)
class Case:
    arguments: list[str]
    said: list[str]


CASES = {
    "unknown estimator": Case([*CALCULATOR, "--estimator", "grop"], ["did you mean grpo?"]),
    "no such estimator": Case(
        [*CALCULATOR, "--estimator", "parts.py:halfs"], ["parts.py has no halfs", "halves?"]
    ),
    "advantages per episode": Case(
        [*CALCULATOR, "--estimator", "parts.py:halves"],
        ["estimator parts.py:halves gave an array of float64 of shape (4,), expected a float32"],
    ),
    "an object of another process": Case(
        [*CALCULATOR, "--estimator", "<lambda>"], ["estimator <lambda> was an object in Python"]
    ),
    "unknown flag": Case([*CALCULATOR, "--trainer.lrr", "1"], ["--trainer.lrr", "trainer.lr"]),
    "unknown key": Case(["typo.toml", *CALCULATOR], ["trainer.clip.hihg", "did you mean high"]),
    "not TOML": Case(["broken.toml"], ["broken.toml", "line 1"]),
    "no file": Case(["nowhere.toml"], ["nowhere.toml"]),
    "unknown pool": Case(
        [*CALCULATOR, "--pools", '{train = "1 x cpu"}', "--roles.actor", "trian"],
        ["roles.actor: there is no pool trian, did you mean train?"],
    ),
    "role without a pool": Case(
        [*CALCULATOR, "--pools", '{train = "1 x cpu"}', "--roles.actor", "train"],
        ["roles.rollout: has no pool"],
    ),
    "no environment": Case([], ["--env"]),
    "merged adapters in shared weights": Case(
        [*CALCULATOR, "--trainer.lora.rank", "4", "--engine.share-weights", "true"],
        ["trainer.lora.publish", "adapter"],
    ),
    "adapters without a rank": Case(
        [*CALCULATOR, "--trainer.lora.publish", "adapter"],
        ["trainer.lora.publish", "without adapters", "trainer.lora.rank"],
    ),
    "memory of no size": Case(
        [*CALCULATOR, "--device-memory", "much"], ["--device-memory", "--dry-run"]
    ),
    "no reward model": Case([*CALCULATOR, "--verifier", "reward_model:nowhere"], ["is no folder"]),
    "unknown environment": Case(["--env", "calclator"], ["did you mean calculator"]),
    "environment not importable": Case(
        ["--env", "no_import.py:MyEnv"],
        ["no_import.py", "ModuleNotFoundError: No module named 'not_there_at_all'", "line 1"],
    ),
    "class not there": Case(["--env", "no_import_.py:MyEnv"], ["no_import_.py"]),
    "tool without a hint": Case(["--env", "no_hint.py:MyEnv"], ["look", "where"]),
    "tool without a docstring": Case(["--env", "no_docstring.py:MyEnv"], ["look", "docstring"]),
    "environment without tasks": Case(["--env", "no_tasks.py:MyEnv"], ["MyEnv", "tasks"]),
    "image part": Case(["--env", "image.py:MyEnv"], ["list", "text"]),
    "unknown parameter": Case([*CALCULATOR, "--env.digit", "3"], ["digit", "digits"]),
    "wrong parameter": Case([*CALCULATOR, "--env.digits", "-1"], ["digits", "-1", "at least 1"]),
    "negative budget": Case([*CALCULATOR, "--rollout.max-new-tokens", "-5"], ["-5", "at least 1"]),
    "budget beyond the episode's": Case(
        [*CALCULATOR, "--rollout.max-new-tokens", "64", "--rollout.max-episode-tokens", "32"],
        ["rollout.max_new_tokens", "64", "32"],
    ),
    "no model folder": Case([*CALCULATOR, "--model", "/no/such/model"], ["/no/such/model"]),
    "no chat template": Case([*CALCULATOR, "--model", "untemplated"], ["chat template"]),
    "no verifier": Case([*CALCULATOR, "--verifier", "rules.py:Missing"], ["Missing", "NoScore"]),
    "verifier without score": Case([*CALCULATOR, "--verifier", "rules.py:NoScore"], ["score"]),
    "run directory in use": Case([*CALCULATOR, "--name", "taken"], ["taken", "--name"]),
    "nothing to resume": Case(["--resume", "nothing"], ["nothing"]),
    "run directory in use, checked only": Case(
        [*CALCULATOR, "--name", "taken", "--dry-run"], ["taken", "--name"]
    ),
    "no name for a folder": Case([*CALCULATOR, "--name", "a/b", "--dry-run"], ["a/b", "letters"]),
    "runs in a file": Case(
        [*CALCULATOR, "--runs-dir", "rules.py", "--name", "x", "--dry-run"], ["rules.py"]
    ),
    "a file in place of the runs": Case(
        [*CALCULATOR, "--runs-dir", "rules.py", "--dry-run"], ["rules.py", "cannot be written"]
    ),
    "own __init__": Case(["--env", "own_init.py:MyEnv", "--dry-run"], ["__init__", "setup()"]),
    "damaged weights": Case([*CALCULATOR, "--model", "damaged", "--dry-run"], ["cut off"]),
    "unknown tool format": Case([*CALCULATOR, "--tool-format", "hermos"], ["hermos", "hermes"]),
    "a name beside --resume": Case(["--resume", "taken", "--name", "other"], ["--name", "keeps"]),
    "copies that do not divide the ranks": Case(
        [*CALCULATOR, "--trainer.ranks", "4", "--trainer.replicate", "3", "--dry-run"],
        ["trainer.replicate: got 3", "divisor", "(4)"],
    ),
    "more ranks than episodes": Case(
        [*CALCULATOR, "--trainer.ranks", "9", "--tasks-per-step", "2", "--group-size", "4"],
        ["trainer.ranks: got 9", "8 episodes", "rollout.group_size"],
    ),
    "best by an evaluation that is not": Case(
        [*CALCULATOR, "--checkpoint.best", "eval/success"], ["checkpoint.best", "eval.every"]
    ),
    "disk full": Case([*CALCULATOR, "DISK"], ["free"]),
}
DRIVER = """
import contextlib, io, json, sys
from agentrl.cli import main
from agentrl.orchestration import preflight
found = []
for arguments in json.load(sys.stdin):
    needed = preflight.FREE_BYTES_NEEDED
    if arguments[-1:] == ["DISK"]:
        arguments.pop()
        preflight.FREE_BYTES_NEEDED = 1 << 60
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["train", *arguments])
    preflight.FREE_BYTES_NEEDED = needed
    found.append([code, out.getvalue(), err.getvalue(), "torch" in sys.modules])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, tuple[int, str, str, bool]]:
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    model = folder / "untemplated"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "tokenizer.json").write_text("{}")
    shutil.copytree(model, folder / "damaged")
    (folder / "damaged" / "chat_template.jinja").write_text("{{ messages }}")
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    damaged = len(header).to_bytes(8, "little") + header + b"1234"
    (folder / "damaged" / "model.safetensors").write_bytes(damaged)
    (folder / "runs" / "taken").mkdir(parents=True)
    (folder / "runs" / "taken" / "config.toml").write_text("steps = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        input=json.dumps([case.arguments for case in CASES.values()]),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_said_in_one_sentence(
    name: str, answers: dict[str, tuple[int, str, str, bool]]
) -> None:
    code, out, err, torch_loaded = answers[name]
    assert code == 2, err
    assert out == ""
    assert err.startswith("agentrl: error: ")
    assert err.count("\n") == 1, err
    for words in CASES[name].said:
        assert words in err
    assert not torch_loaded
