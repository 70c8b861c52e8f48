"""Instances of the public sets in images of their own, named or built from a Dockerfile."""

import importlib.util
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.errors import ConfigError, VerifierError
from agentrl.sandboxes import SandboxOptions, SandboxUnavailable
from agentrl.sandboxes.docker import engine
from agentrl.sandboxes.image import image_tar
from agentrl.types import Outcome, Score
from tests.contract.sandbox import shop

pytestmark = [pytest.mark.sandbox, pytest.mark.docker, pytest.mark.timeout(180)]

BASE: Final = "agentrl-test-instance:latest"
PLACE: Final = "opt/shop"
SITE: Final = "usr/lib/python3/dist-packages"
SOURCE: Final = "src/shop/prices.py"
TESTS: Final = "tests/test_prices.py"
FILES: Final = {**shop.FILES, SOURCE: shop.WRONG}
ROW: Final = {
    "repo": "acme/shop",
    "base_commit": "0" * 40,
    "problem_statement": "A discount adds.",
    "patch": make_patch({SOURCE: shop.WRONG}, {SOURCE: shop.PRICES}),
    "test_patch": make_patch({TESTS: shop.TESTS}, {TESTS: shop.TESTS + "\n"}),
    "FAIL_TO_PASS": [f"{TESTS}::{name}" for name in shop.FAILING],
    "PASS_TO_PASS": [f"{TESTS}::{name}" for name in shop.PASSING],
}


def instance_tar() -> bytes:
    """The sandbox image's files, pytest among the image's own packages, and the repository."""
    buffer = io.BytesIO(image_tar())
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            file = Path(spec.origin)
            path = file.parent if file.name == "__init__.py" else file
            tar.add(path, f"{SITE}/{path.name}", filter=_no_caches)
        link = tarfile.TarInfo("usr/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "python3"
        tar.addfile(link)
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"{PLACE}/{name}")
            info.size, info.mode = len(text.encode()), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _no_caches(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info


@pytest.fixture(scope="module")
def image(missing: Callable[[str], str]) -> Iterator[str]:
    if reason := missing("docker"):
        if os.environ.get("REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    engine().load_image(instance_tar(), BASE)
    yield BASE
    engine().client.images.remove(BASE, force=True)


def config(folder: Path, place: str = f"/{PLACE}", **more: object) -> SweSandbox.Config:
    file = folder / f"{len(list(folder.iterdir()))}.jsonl"
    file.write_text(json.dumps({"instance_id": "acme__shop-1", **ROW, **more}))
    options = SandboxOptions(backend="docker")
    return SweSandbox.Config(
        tasks=str(file), image_root=place, sandbox=options, build_images="dockerfile" in more
    )


async def played(config: SweSandbox.Config, *, right: bool = True) -> Outcome:
    agent = SweSandbox.expert() if right else shop.BashAgent(f"echo '#' >> {SOURCE}")
    env = SweSandbox(config)
    (tasks,) = SweSandbox.list_tasks(config).values()
    try:
        await env.areset(options={"task": tasks[0]})
        return await shop.play(env, agent)
    finally:
        await env.aclose()


async def score(config: SweSandbox.Config, *, right: bool) -> float:
    outcome = await played(config, right=right)
    assert isinstance(outcome, Score), outcome
    return outcome.value


async def test_an_instance_lives_and_is_graded_in_its_image(image: str, tmp_path: Path) -> None:
    made = config(tmp_path, image_name=image)
    scores = await score(made, right=True), await score(made, right=False)
    await default_services().sandboxes.close()
    assert scores == (1.0, 0.0)


async def test_an_image_is_built_from_its_dockerfile_when_that_is_asked_for(
    image: str, tmp_path: Path
) -> None:
    text = f"FROM {image}\nRUN mv /{PLACE} /moved\n"
    made = config(tmp_path, "/moved", dockerfile=text)
    assert await score(made, right=True) == 1.0
    bare = config(tmp_path, dockerfile=f"FROM {image}\nRUN rm -r /{SITE}/pytest\n")
    # It is asked for decoys before the agent plays.
    with pytest.raises(VerifierError, match=r"did not begin in the sandbox \(ModuleNotFoundError"):
        await played(bare)
    await default_services().sandboxes.close()
    refused = made.model_copy(update={"build_images": False})
    with pytest.raises(ConfigError, match="comes as a Dockerfile"):
        SweSandbox.list_tasks(refused)
    broken = config(tmp_path, dockerfile=f"FROM {image}\nRUN false\n", image="")
    with pytest.raises(SandboxUnavailable, match="could not be built"):
        SweSandbox.list_tasks(broken)
