"""The folders of bwrap sandboxes on this machine, and what is left of them.

<temporary folder>/agentrl-sandboxes-<uid>/places/     locks: how many may be in use (`admission`)
<temporary folder>/agentrl-sandboxes-<uid>/<owner>/    one per process
bases/N     copies of base folders that belong to the sandboxes' user
SANDBOX/disk/         as root a tmpfs: the limit of bytes and files
SANDBOX/disk/tmp      the sandbox's /tmp
SANDBOX/disk/upper    of the overlay over the base, and its work folder
SANDBOX/workspace     the overlay; without mounts, a plain folder
SANDBOX/mounts/NAME   as root a folder of the machine, wherever it lies
"""

import ctypes
import errno
import functools
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from agentrl.sandboxes.cgroup import Group, Hierarchy
from agentrl.sandboxes.errors import SandboxStartError
from agentrl.sandboxes.owner import Owner
from agentrl.sandboxes.types import Limits

SHARED_UID: Final = 0x5A0B0000
"""The user of the sandboxes where a control group keeps them apart."""
PREPARING: Final = threading.RLock()
"""Held while the folder of this process is filled or removed: the end of the last sandbox takes
away what the start of the next one needs.
"""
_SHARED: Final = ("bases", "bin", "bin-new", "probe")
_READ_ONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _DETACH = 1, 2, 4, 32, 4096, 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def root_folder() -> Path:
    """Where the folders of this user's processes are."""
    return Path(tempfile.gettempdir()) / f"agentrl-sandboxes-{os.geteuid()}"


@functools.cache
def _make_owner_folder_path(pid: int) -> Path:
    return root_folder() / str(Owner.this())


def owner_folder() -> Path:
    """The folder of this process; other users may pass through it, not list it."""
    return private_folder(_make_owner_folder_path(os.getpid()))


def private_folder(folder: Path) -> Path:
    """Make a folder and the one above it, which no other user can have made."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o711, exist_ok=True)
        if path.stat().st_uid != os.geteuid():
            raise SandboxStartError(f"the folder {path} belongs to another user; remove it")
        path.chmod(0o711)
    return folder


def new_folder(sandbox: str) -> Path:
    """A folder for a sandbox; from here on the folder of this process stays."""
    with PREPARING:
        folder = owner_folder() / sandbox
        folder.mkdir(mode=0o711)
        return folder


def mount(kind: str, place: Path, options: str) -> None:
    """Mount a file system; the error is an OSError."""
    _mount_file_system(b"agentrl", place, kind.encode(), 0, options.encode())


def _mount_file_system(source: bytes, place: Path, kind: bytes, flags: int, options: bytes) -> None:
    if _libc.mount(source, os.fsencode(place), kind, flags | _NOSUID | _NODEV, options):
        code = ctypes.get_errno()
        what = kind.decode() or source.decode(errors="replace")
        raise OSError(code, f"mounting {what}: {os.strerror(code)}", str(place))


def unmount(place: Path) -> None:
    """Take a mount away, at once for everybody; nothing happens if there is none."""
    if _libc.umount2(os.fsencode(place), _DETACH):
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOENT):
            raise OSError(code, f"unmounting: {os.strerror(code)}", str(place))


def unmount_all(sandbox: Path) -> None:
    """Take away all that may be mounted in a sandbox's folder."""
    for place in (sandbox / "workspace", sandbox / "disk", *sandbox.glob("mounts/*")):
        unmount(place)


def remove_tree(place: Path) -> None:
    """Remove a folder whatever is in it; Python's own way recurses too deeply for a hostile one."""
    command = ["rm", "-rf", "--one-file-system", "--", str(place)]
    done = subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    if done.returncode and os.geteuid():
        # A folder without permissions cannot be emptied by a plain user, who mounts nothing.
        opened = ["chmod", "-R", "u+rwX", "--", str(place)]
        subprocess.run(opened, check=False, stderr=subprocess.DEVNULL)
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


class Workspace:
    """The folders of one sandbox."""

    def __init__(
        self, folder: Path, uid: int | None, base: str | None, limits: Limits, *, mounts: bool
    ) -> None:
        self.folder = folder
        self.files = folder / "workspace"
        self._disk = folder / "disk"
        self.tmp = self._disk / "tmp"
        self._upper = self._disk / "upper"
        self._uid = uid
        self._base = base
        self._limits = limits
        self._mounts = mounts

    def create(self, upper: Path | None = None) -> None:
        """Make it as the base is, or as an earlier upper layer was; the error is an OSError."""
        self.folder.mkdir(mode=0o711, exist_ok=True)
        self.files.mkdir(exist_ok=True)
        self._disk.mkdir(mode=0o711, exist_ok=True)
        if self._mounts:
            size = f"size={self._limits.disk_bytes},nr_inodes={self._limits.files}"
            mount("tmpfs", self._disk, f"{size},mode=711")
        self._make_folder_owned_by_user(self.tmp)
        if not self._mounts:
            if self._base is not None:
                copy_tree(Path(self._base), self.files)
            self._make_folder_owned_by_user(self.files)
            return
        if upper is None:
            self._make_folder_owned_by_user(self._upper)
        else:
            copy_tree(upper, self._upper)
        (self._disk / "work").mkdir()
        lower = self._make_overlay_lower_folder()
        layers = f"lowerdir={lower},upperdir={self._upper},workdir={self._disk}/work"
        mount("overlay", self.files, layers)

    def show(self, mounts: Mapping[str, Path]) -> dict[str, Path]:
        """Where bwrap, as the sandbox's user, finds folders that may lie in private ones."""
        if not self._mounts:
            return dict(mounts)
        shown = {name: self.folder / "mounts" / name for name in mounts}
        for name, place in shown.items():  # to read; what is mounted below it is not shown
            place.mkdir(parents=True)
            _mount_file_system(os.fsencode(mounts[name].absolute()), place, b"", _BIND, b"")
            _mount_file_system(b"", place, b"", _BIND | _REMOUNT | _READ_ONLY, b"")
        return shown

    def recreate(self, upper: Path | None) -> None:
        """Throw away what is there and create it anew."""
        self.clear()
        self.create(upper)

    def save(self, place: Path) -> None:
        """Copy what was written over the base."""
        copy_tree(self._upper, place)

    def clear(self) -> None:
        """Take away what `create` made, but for the folder itself."""
        if self._mounts:
            unmount(self.files)
            unmount(self._disk)
        else:
            remove_tree(self.files)
            remove_tree(self._disk)

    def remove(self) -> None:
        """Take everything away."""
        self.clear()
        unmount_all(self.folder)
        remove_tree(self.folder)

    def _make_folder_owned_by_user(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        if self._uid is not None:
            os.chown(place, self._uid, self._uid)
        place.chmod(0o700)

    def _make_overlay_lower_folder(self) -> Path:
        if self._base is not None:
            return prepared_base(self._base, self._uid)
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        return empty


def prepared_base(base: str, uid: int | None) -> Path:
    """A copy of a base folder that belongs to the sandboxes' user, made once per process."""
    with PREPARING:
        return _copy_base_folder_for_user(base, uid)


@functools.cache
def _copy_base_folder_for_user(base: str, uid: int | None) -> Path:
    bases = owner_folder() / "bases"
    bases.mkdir(mode=0o711, exist_ok=True)
    copy = Path(tempfile.mkdtemp(dir=bases))
    try:
        copy_tree(Path(base), copy)
    except SandboxStartError:
        remove_tree(copy)
        raise
    if uid is not None:
        subprocess.run(["chown", "-Rh", f"{uid}:{uid}", str(copy)], check=True)
    return copy


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with all attributes: an overlay marks what is deleted by devices and xattrs."""
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "-T", str(source), str(target)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxStartError(f"copying {source}: {said[-1] if said else 'cp failed'}")


def close_owner_folder() -> None:
    """Remove this process's folder when its last sandbox is closed."""
    folder = _make_owner_folder_path(os.getpid())
    with PREPARING:
        if not sandboxes_in(folder):
            _copy_base_folder_for_user.cache_clear()
            remove_tree(folder)


def owners() -> Iterator[tuple[Owner, Path]]:
    """The processes that have a folder here."""
    for path in sorted(root_folder().glob("*")):
        owner = Owner.parse(path.name)
        if owner is not None:
            yield owner, path


def sandboxes_in(folder: Path) -> tuple[Path, ...]:
    """The folders of the sandboxes of one owner."""
    return tuple(path for path in folder.glob("*") if path.name not in _SHARED)


def reap() -> int:
    """Remove what processes that are gone have left; how many sandboxes that were."""
    count = 0
    hierarchy = Hierarchy.find()
    for owner, folder in owners():
        if not owner.is_gone:
            continue
        names = [path.name for path in sandboxes_in(folder)]
        if hierarchy is not None:
            for name in hierarchy.groups(f"{owner.pid}-{owner.started}-"):
                Group(hierarchy, name).remove()
        for name in names:
            unmount_all(folder / name)
        remove_tree(folder)
        count += len(names)
    return count


def free_group_name(sandbox: str) -> str:
    """The control group's name of a sandbox of this process."""
    owner = Owner.this()
    return f"{owner.pid}-{owner.started}-{sandbox}"


def shared_copy(program: str) -> str:
    """The program where other users can run it; a copy if it lies in a private folder.

    The copy goes with the last sandbox of this process, so ask anew for each.
    """
    path = Path(program).resolve()
    if all(parent.stat().st_mode & 0o001 for parent in path.parents):
        return str(path)
    # The wheel's program looks for its library two folders above itself.
    site = path.parents[2]
    target = owner_folder() / "bin"
    with PREPARING:
        if not target.is_dir():
            fresh = target.with_name("bin-new")
            fresh.mkdir(exist_ok=True)
            for name in (path.parents[1].name, f"{path.parents[1].name}.libs"):
                if (site / name).is_dir():
                    # Not by this process: a child that another thread forks meanwhile would hold
                    # the program open for writing, and then it cannot be run.
                    copy_tree(site / name, fresh / name)
            fresh.rename(target)
    return str(target / path.relative_to(site))
