import subprocess
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.patch import make_patch

TEXTS = st.lists(st.sampled_from(["a", "b", "  c", "", "x\x0cy", "ä\u2028"]), max_size=8).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, TEXTS)
def test_git_applies_a_patch(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "a b.py"
    file.unlink(missing_ok=True)
    if before:
        file.write_bytes(before.encode())
    patch = make_patch({file.name: before}, {file.name: after})
    if before == after:
        assert patch == ""
        return
    env = {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PATH": "/usr/bin:/bin"}
    command = ["git", "apply", "-"]
    done = subprocess.run(
        command, cwd=tmp_path, input=patch.encode(), env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (file.read_bytes() if file.exists() else b"") == after.encode()
