"""The agent's copy of a repository: how it begins, and the patch that is left at its end."""

import secrets
from dataclasses import dataclass
from typing import Final

from agentrl.errors import SandboxError
from agentrl.sandboxes import ExecResult, Sandbox

_TIMEOUT_S: Final = 120.0
_MOST_SAID: Final = 300
_COMMIT: Final = """
command -v git >/dev/null || exit 0
git init -q . && git add -Af . && git -c user.name=agentrl -c user.email=agentrl@localhost \\
    commit -q --allow-empty -m "The repository as it was found"
"""
# What the agent's commands have left beside its work is no part of the patch. The names a and b are
# those of git's prefixes.
_TAKE: Final = """
set -e
chmod -R u+rwX . 2>/dev/null || :
clean() {
    find "$1" -depth -regextype egrep \\
        -regex '.*/(\\.git|__pycache__|\\.pytest_cache|[^/]*\\.pyc)' -exec rm -rf -- {} +
    find "$1" ! -type f ! -type d ! -type l -delete
}
mkdir "$1" "$1/a" "$1/b"
find . -mindepth 1 -maxdepth 1 ! -name "$1" -exec mv -t "$1/b" -- {} +
cd "$1"
(cd a; TREE)
clean a; clean b
git diff --no-index --no-prefix --no-renames --binary --no-color --no-ext-diff --no-textconv a b \\
    || [ $? = 1 ]
"""
_ENVIRONMENT: Final = {
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree:
    """How an empty folder in a sandbox becomes a repository."""

    script: str
    """For a shell in that folder."""
    stdin: bytes = b""


class NoPatch(Exception):
    """The agent has left nothing that a patch could be made of; the message says why."""


async def fill(sandbox: Sandbox, tree: WorkTree, *, commit: bool) -> None:
    """Make a new sandbox's workspace the repository; with `commit`, one of git with one commit.

    Raises:
        SandboxError: It cannot be put there.
    """
    line = f"{tree.script} || exit 1{_COMMIT if commit else ''}"
    done = await sandbox.exec(line, stdin=tree.stdin, timeout_s=_TIMEOUT_S)
    if not done.ok:
        raise SandboxError(
            f"the repository cannot be put into the sandbox: {_explain_failed_command(done)}"
        )


async def take_patch(sandbox: Sandbox, before: WorkTree) -> str:
    """What differs in the workspace from the tree that it began as, in git's format.

    Everything that runs is ended. What the agent has done to its .git does not matter. The
    workspace is of no use afterwards.

    Raises:
        NoPatch: The patch is too large, or the agent has filled the disk.
        SandboxError: The sandbox failed.
    """
    await sandbox.kill_leftovers()
    place = f".agentrl-{secrets.token_hex(8)}"
    done = await sandbox.exec(
        ["bash", "-c", _TAKE.replace("TREE", before.script), "bash", place],
        env={**_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": f"{sandbox.workspace}"},
        stdin=before.stdin,
        timeout_s=_TIMEOUT_S,
    )
    if not done.ok or (done.stderr and not done.stdout):  # git's own trouble is a 1 too
        raise NoPatch(f"no patch can be taken: {_explain_failed_command(done)}")
    if done.stdout_truncated:
        raise NoPatch(f"the patch has {done.stdout_total} bytes, more than is taken")
    return done.stdout.decode("utf-8", "surrogateescape")


def _explain_failed_command(done: ExecResult) -> str:
    if done.status != "exited":
        return done.status
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:_MOST_SAID] if lines else f"exit code {done.exit_code}"
