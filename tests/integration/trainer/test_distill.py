"""Distillation from a teacher: the policy's own episodes bring it nearer to another model."""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part only.

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

import pytest
from aiohttp import web

from agentrl.cli import main
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.serve.app import App
from agentrl.engine.serve.serving import Serving
from agentrl.engine.servers.control import Keys
from agentrl.errors import ConfigError
from agentrl.orchestration import jobs
from agentrl.orchestration.load import load_run_config
from agentrl.run_dir import read_lines
from agentrl.tokens import Tokenizer
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.trainer import LocalTrainer
from tests.threaded_app import serving
from tests.unit.trainer.batches import batch_of, plain_logprobs, random_segments, tiny_model

ENV = """
from agentrl.envs import ToolEnv
from agentrl.types import Task

class Talk(ToolEnv):
    max_turns = 1
    tasks = [Task(prompt=f"Say something about {i}.", answer="") for i in range(8)]

    def score(self, answer):
        return 0.0
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an environment, a student and a teacher, both of random weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.py").write_text(ENV)
    for name, seed in (("student", 0), ("teacher", 1)):
        shutil.copytree(resolve_model("tiny", seed=seed), tmp_path / name)
    return tmp_path


@pytest.fixture
def teacher_url(workplace: Path) -> Iterator[str]:
    """The teacher, served by `agentrl engine serve`."""
    folder = workplace / "teacher"
    model = load_model(folder)
    engine = LocalEngine(model)

    async def make() -> web.Application:
        return App(Serving(engine, model, Tokenizer.load(folder)), folder, Keys()).make()

    with serving(make) as url:
        yield url
    asyncio.run(engine.aclose())


def train(steps: int, **keys: object) -> list[Mapping[str, object]]:
    """The metrics of each step of a short run."""
    settings: dict[str, object] = {
        "env": [{"name": "talk.py:Talk"}],
        "model": "student",
        "steps": steps,
        "trainer.lr": 3e-3,
        "trainer.algorithm": "distill",
        "trainer.reference": "teacher",
        "rollout.group_size": 1,
        "rollout.tasks_per_step": 16,
        "rollout.max_new_tokens": 24,
        "rollout.max_context_tokens": 256,
        "checkpoint.every": 100,
        "threads": 1,
        "deterministic": True,
    }
    loaded = load_run_config(keywords=settings | keys)
    return [*read_lines(jobs.train(loaded).path / "metrics.jsonl")]


@pytest.mark.usefixtures("workplace")
def test_the_policy_comes_nearer_to_the_teacher() -> None:
    kl = [float(str(step["kl"])) for step in train(12, **{"trainer.lr": 1e-3})]
    assert kl[0] > 1
    # Each is of 16 episodes, and they go their own ways by a processor's rounding.
    assert mean(kl[-4:]) < 0.7 * kl[0]


def are_alike(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """True if two steps had the same teacher, but for rounding."""
    keys = ("kl", "loss", "grad_norm")
    return [float(str(one[key])) for key in keys] == pytest.approx(
        [float(str(other[key])) for key in keys], rel=1e-4
    )


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_ranks_ask_the_same_teacher(teacher_url: str) -> None:
    alone = train(1)[0]
    for reference in ("teacher", teacher_url):
        assert are_alike(train(1, **{"trainer.ranks": 2, "trainer.reference": reference})[0], alone)


def test_a_teacher_on_a_server_is_the_one_in_its_folder(teacher_url: str) -> None:
    keys: dict[str, object] = {"trainer.kl.coef": 0.1, "trainer.kl.kind": "k2"}
    here, there = train(2, **keys), train(2, **keys, **{"trainer.reference": teacher_url})
    assert are_alike(here[0], there[0])
    assert are_alike(here[1], there[1])
    assert not are_alike(here[0], here[1])


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_model_that_was_given(rank: int) -> None:
    teacher = tiny_model(seed=1)
    settings = {"reference": "teacher", "lora": {"rank": rank}}
    trainer = LocalTrainer(
        tiny_model(), TrainerConfig.model_validate(settings), total_steps=1, reference=teacher
    )
    batch = batch_of(random_segments([9, 12, 5]))
    found_N = trainer.with_outputs(batch, ["reference"]).reference_N
    assert found_N is not None
    own = plain_logprobs(tiny_model(seed=1), batch).detach().numpy()
    assert found_N == pytest.approx(own * batch.mask_N, abs=1e-4)


BAD = {
    "": "estimator distill needs a teacher: set trainer.reference",
    "student": "estimator distill needs a teacher: set trainer.reference to another model",
    "nowhere": "is no folder",
    "foreign": "trainer.reference: .*foreign has another vocabulary than .*'<extra>' is 768 there "
    "and no token here",
    "short": "trainer.reference: the model takes 32 tokens",
}


@pytest.mark.parametrize("reference", BAD)
def test_a_teacher_that_cannot_be_compared_is_refused(reference: str, workplace: Path) -> None:
    if reference in ("foreign", "short"):
        shutil.copytree(workplace / "teacher", workplace / reference)
    if reference == "foreign":
        file = workplace / reference / "tokenizer.json"
        content = json.loads(file.read_text())
        content["added_tokens"].append({**content["added_tokens"][-1], "id": 768})
        content["added_tokens"][-1]["content"] = "<extra>"
        file.write_text(json.dumps(content))
    if reference == "short":
        file = workplace / reference / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 32}))
    with pytest.raises(ConfigError, match=BAD[reference]):
        train(1, **{"trainer.reference": reference})


def test_a_reference_that_nothing_reads_is_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["train", "--env", "talk.py:Talk", "--trainer.reference", "teacher", "--dry-run"]
    assert main([*said, "--group-size", "2"]) == 2
    assert f"trainer.reference: got {workplace / 'teacher'}, but nothing" in capsys.readouterr().err
    assert main([*said, "--trainer.kl.coef", "0.1"]) == 0
    distill = [*said, "--algorithm", "distill"]
    for unread in ("--trainer.kl.where=reward", "--trainer.reward.scale=2"):
        assert main([*distill, "--trainer.kl.coef", "0.1", unread]) == 2
        assert "estimator distill, which reads the teacher alone" in capsys.readouterr().err


NOWHERE = "http://127.0.0.1:1"
EXACT = ("--trainer.kl.coef=0.1", "--trainer.kl.kind=exact")


@pytest.mark.parametrize(
    ("url", "flags", "said"),
    [
        (NOWHERE, (), f"trainer.reference: the SGLang server at {NOWHERE} did not do /server_info"),
        (NOWHERE, EXACT, "trainer.kl.kind: got exact with trainer.reference http://127.0.0.1:1,"),
        (NOWHERE, ("--temperature=0.5",), "rollout.temperature: got 0.5 with trainer.reference"),
        (f"{NOWHERE}/", (f"--engine-url={NOWHERE}",), "which samples and so gets the weights"),
        ("http://", (), "trainer.reference: got http://, expected http://HOST:PORT"),
        ("http://a:1,http://b:1", (), "trainer.reference: got http://a:1,http://b:1, expected"),
        ("https://a:70000", (), "trainer.reference: got https://a:70000, expected http"),
    ],
)
@pytest.mark.usefixtures("workplace")
def test_a_server_that_cannot_be_the_teacher_is_refused_before_anything_loads(
    url: str, flags: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", "--env", "talk.py:Talk", "--model", "tiny", "--algorithm", "distill"]
    assert main([*given, "--trainer.reference", url, *flags, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_run_checks_its_server_first_and_keeps_no_model(
    workplace: Path, teacher_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["train", "--env", "talk.py:Talk", "--model", "student", "--algorithm", "distill"]
    said += ["--trainer.reference", f"{teacher_url}/", "--dry-run"]
    assert main(said) == 2  # a server keeps a token of the context to itself
    assert "takes 2,046 tokens, but the policy's episodes may have 2,048" in capsys.readouterr().err
    room = ["--rollout.max-context-tokens", "512"]
    assert main([*said, *room, "--device-memory", "24GB"]) == 0
    assert "reference           0.00 GB" in capsys.readouterr().out
    assert main([*said, *room]) == 0
    assert f'reference = "{teacher_url}/"' in capsys.readouterr().out
