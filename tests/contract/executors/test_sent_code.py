"""A node that has neither agentrl nor the user's code gets both from the driver."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

SHOP = """
from agentrl.envs import ToolEnv
from agentrl.types import Task
from prices import PRICE

class Shop(ToolEnv):
    tasks = [Task(prompt="Buy.", answer=PRICE)]

    def score(self, answer: str) -> float:
        return 0.0
"""


DRIVER = """
import asyncio, sys
from pathlib import Path

import agentrl
from agentrl.errors import ConfigError
from agentrl.orchestration.ray_workers import RayPlayers
from agentrl.rollout.player import EnvMaker, pickle_envs
from agentrl.workers.executors import WorkerCall

address, folder = sys.argv[1:]
sys.path.append(folder)
from shop import Shop
from where import tell_where

sys.path.remove(folder)  # Ray would have it looked at on a node of this machine too
maker = EnvMaker(
    name="shop", env_class=Shop, config=Shop.Config(), verifier=None, max_turns=None, context=None
)
sys.path.append(folder)
envs = pickle_envs([maker])
sys.path.remove(folder)
package = str(Path(agentrl.__file__).parent)
for code in ((), (package,), (package, folder)):
    try:
        RayPlayers("sent", address, 5.0, code).check(envs, None)
        print("played")
    except ConfigError as error:
        print(error)
workers = RayPlayers("sent", address, 5.0, (package, folder)).start(1)
sys.path.append(folder)
print(*asyncio.run(workers.exchange(0, WorkerCall(tell_where))), sep="\\n")
workers.close()
"""

WHERE = """
from pathlib import Path

import agentrl
from agentrl import envs

def tell_where(seat: object) -> tuple[str, str]:
    return str(agentrl.__file__), str(Path(envs.__file__).parent)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of a node whose Python knows the libraries and no agentrl."""
    place = tmp_path / "elsewhere"
    venv.create(place / "python", symlinks=True)
    [libraries] = (place / "python").glob("lib/python*/site-packages")
    # What stands in .pth files there, such as where agentrl is, counts in its own folder alone.
    (libraries / "all.pth").write_text(sysconfig.get_path("purelib"))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with subprocess.Popen(
        [
            *(place / "python/bin/python", "-m", "ray.scripts.scripts", "start", "--head"),
            *("--port=0", "--num-cpus=1", "--include-dashboard=false", "--block"),
            *("--temp-dir", f"/tmp/agentrl-{os.getpid()}"),
        ],
        cwd=place,
        env={**environment, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as node:
        try:
            assert node.stdout is not None
            address = next(line for line in node.stdout if "--address=" in line)
            yield address.split("--address=")[1].strip().strip("'")
        finally:
            node.terminate()
            node.wait(30)


@pytest.mark.nightly  # a node and three drivers' worth of processes
def test_code_that_is_sent_is_found_with_its_linked_folders(elsewhere: str, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "prices.py").write_text("PRICE = 3")
    (folder / "where.py").write_text(WHERE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, elsewhere, str(folder)],
        cwd=tmp_path,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(done.stderr)
    nothing, package_alone, both, file, linked = done.stdout.splitlines()
    assert "No module named 'agentrl'" in nothing
    assert package_alone.startswith("env shop cannot be played on ")
    assert "No module named 'shop'" in package_alone
    assert both == "played"
    assert "py_modules_files" in file
    assert linked == str(Path(file).parent / "envs")
