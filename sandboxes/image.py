"""Builds the sandbox image from this machine's own Debian packages: no registry is asked.

python -m agentrl.sandboxes.image NAME      into the engine of DOCKER_HOST
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agentrl.sandboxes.errors import SandboxUnavailable
from agentrl.sandboxes.types import DEFAULT_IMAGE

PACKAGES: Final[tuple[str, ...]] = (
    *("bash", "coreutils", "dash", "diffutils", "findutils", "gawk", "mawk", "grep", "gzip"),
    *("libc-bin", "patch", "procps", "python3", "sed", "tar", "util-linux", "git", "tini"),
)
_SKIPPED: Final = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/")
_ETC: Final = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nsandbox:x:65534:65534::/tmp:/bin/bash\n",
    "etc/group": "root:x:0:\nsandbox:x:65534:\n",
    "etc/gitconfig": "[safe]\n\tdirectory = *\n",
}
_LINKS: Final = ("bin", "sbin", "lib", "lib64")
_FOLDERS: Final = {"tmp": 0o1777, "workspace": 0o1777, "proc": 0o755, "dev": 0o755, "sys": 0o755}


def image_tar() -> bytes:
    """The root file system as tar.

    Raises:
        SandboxUnavailable: This is no Debian-like machine, or a package is missing.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add_base_folders_to_tar(tar)
        # A file listed below /bin lies below /usr/bin, since /bin is a link.
        paths = {
            Path(name).parent.resolve() / Path(name).name
            for name in _list_package_files(_list_needed_debian_packages())
        }
        for path in sorted(paths - {Path("/", name) for name in _LINKS}):
            info = tar.gettarinfo(str(path), str(path).lstrip("/"))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            if info.islnk():
                info.type, info.size = tarfile.REGTYPE, path.stat().st_size
            if info.isreg():
                info.mode &= ~0o6000
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return buffer.getvalue()


def _add_base_folders_to_tar(tar: tarfile.TarFile) -> None:
    for name in _LINKS:
        path = Path("/", name)
        if path.is_symlink():
            tar.add(path, name, recursive=False)
    for name, mode in _FOLDERS.items():
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        tar.addfile(info)
    for name, text in _ETC.items():
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text), 0o644
        tar.addfile(info, io.BytesIO(text.encode()))


def _list_package_files(packages: list[str]) -> Iterator[str]:
    for line in _run_dpkg_command("dpkg", "-L", *packages).splitlines():
        if line.startswith("/") and not line.startswith((*_SKIPPED, "/etc/")):
            path = Path(line)
            if path.is_symlink() or path.is_file():
                yield line
    yield "/etc/ld.so.cache"
    for link in Path("/etc/alternatives").iterdir():
        yield str(link)
    for name in ("awk", "which"):
        if Path("/usr/bin", name).exists():
            yield f"/usr/bin/{name}"


def _list_needed_debian_packages() -> list[str]:
    """The installed packages that ours need, themselves included."""
    known: dict[str, str] = {}
    provided: dict[str, str] = {}
    table = _run_dpkg_command(
        "dpkg-query", "-W", "-f", "${Package}\\t${Pre-Depends}, ${Depends}\\t${Provides}\\n"
    )
    for line in table.splitlines():
        name, needs, provides = line.split("\t")
        known[name] = needs
        provided.update(dict.fromkeys(_list_packages_in_debian_relations(provides), name))
    found: set[str] = set()
    open_ = [name for name in PACKAGES if name in known]
    if "python3" not in open_:
        raise SandboxUnavailable("the image needs Debian's python3; apt-get install python3 git")
    while open_:
        name = open_.pop()
        if name in found:
            continue
        found.add(name)
        needed = (provided.get(n, n) for n in _list_packages_in_debian_relations(known[name]))
        open_ += [name for name in needed if name in known]
    return sorted(found)


def _list_packages_in_debian_relations(relations: str) -> list[str]:
    parts = relations.replace("|", ",").split(",")
    return [part.split()[0].partition(":")[0] for part in parts if part.strip()]


def _run_dpkg_command(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(
            f"the image is built from this machine's Debian packages, but {command[0]} failed: "
            f"{error}; make an image of your own with bash, python3, tar and find"
        ) from error


def build(name: str = DEFAULT_IMAGE) -> str:
    """Build the image and give it to the engine; returns its id."""
    from agentrl.sandboxes.docker import engine

    return engine().load_image(image_tar(), name)


if __name__ == "__main__":
    os.umask(0o022)
    print(build(*sys.argv[1:]))
