"""File access from inside the sandbox, as the sandbox's own user.

Paths are resolved by the sandbox's kernel view, so no symlink, `..` or race in it can reach a file
of the host. Whoever waits at a FIFO waits in the sandbox, and only until a timeout.
"""

import io
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from agentrl.sandboxes.errors import FileAccessError, FileTooLarge, PathEscape
from agentrl.sandboxes.types import Entry, ExecResult, Kind

TIMEOUT_S: Final = 20.0
TREE_TIMEOUT_S: Final = 120.0
TOO_LARGE: Final = 64
_CHECK: Final = """
[ -e "$1" ] || { echo "there is no such file" >&2; exit 65; }
[ ! -d "$1" ] || { echo "it is a folder" >&2; exit 65; }
[ -f "$1" ] || { echo "it is no regular file" >&2; exit 65; }
"""
READ: Final = (
    _CHECK
    + """
n=$(stat -Lc %s -- "$1") || exit 65
[ "$n" -le "$2" ] || { echo "it has $n bytes, and $2 may be read" >&2; exit 64; }
exec head -c "$2" -- "$1"
"""
)
# The new content gets the name only when it is complete: a full disk leaves the old file. A file
# with several names would lose one, so there it is copied. The x keeps line ends of a name.
WRITE: Final = """
if [ "$3" = follow ] && [ -L "$1" ]; then
    f=$(readlink -f -- "$1" && echo x) || { echo "the link leads nowhere" >&2; exit 65; }
    f=${f%??}; set -- "$f" "$2" "$3"
fi
[ ! -e "$1" ] || [ -f "$1" ] || { echo "it is no regular file" >&2; exit 65; }
mkdir -p -- "$(dirname -- "$1")" || exit 65
t=$1.$$.new
take() {
    if [ "$1" = follow ] && [ "$(stat -c %h -- "$2" 2>/dev/null || echo 1)" -gt 1 ]
    then cat "$t" >"$2" && rm -f -- "$t"
    else mv -fT -- "$t" "$2"; fi
}
if cat >"$t" && { [ "$2" = keep ] && { [ ! -f "$1" ] || chmod --reference="$1" -- "$t"; } ||
    chmod "$2" -- "$t"; } && take "$3" "$1"
then exit 0; fi
rm -f -- "$t"
exit 65
"""
LIST: Final = """
[ -d "$1" ] || { echo "there is no such folder" >&2; exit 65; }
exec find "$1/" -mindepth 1 -maxdepth 1 -printf '%y %s %f\\0'
"""
# Without the folder itself: it may belong to another user, who alone could set its times. What its
# own user cannot read is left out; 1 stands for a file that changed meanwhile.
PACK: Final = """
cd -- "$1" && find . -mindepth 1 -maxdepth 1 -print0 |
tar --null --no-unquote -T - -cf - --ignore-failed-read || [ $? = 1 ]
"""
# Of the names on standard input; those that are not there are left out.
PACK_NAMED: Final = """
tar --null --no-unquote -T - -cf - -Ph --hard-dereference --no-recursion 2>/dev/null; :
"""
UNPACK: Final = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xf - --no-same-owner'
# A folder without permissions could not be emptied.
WIPE: Final = """
for d in "$@"; do chmod -R u+rwX -- "$d" 2>/dev/null; find "$d" -mindepth 1 -delete; done
"""
_HERE: Final = PurePosixPath()
_KINDS: Final[dict[str, Kind]] = {"f": "file", "d": "folder", "l": "link"}


def require_ok(result: ExecResult, what: str) -> ExecResult:
    """The result of one of the scripts above, if it went well."""
    if result.ok:
        return result
    if result.status == "timeout":
        raise FileAccessError(f"{what}: it did not end in time; is it a pipe or a device?")
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    said = lines[-1].rpartition(": ")[2] if lines else f"exit code {result.exit_code}"
    if result.exit_code == TOO_LARGE:
        raise FileTooLarge(f"{what}: {said}")
    raise FileAccessError(f"{what}: {said}")


def entries(listing: bytes) -> tuple[Entry, ...]:
    """What LIST printed, sorted by name."""
    found: list[Entry] = []
    for line in listing.split(b"\0")[:-1]:
        kind, size, name = line.decode(errors="replace").split(" ", 2)
        found.append(Entry(name=name, kind=_KINDS.get(kind, "other"), size=int(size)))
    return tuple(sorted(found, key=lambda entry: entry.name))


def pack(source: Path) -> bytes:
    """A file or a folder's content as tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in source.iterdir() if source.is_dir() else (source,):
            tar.add(path, arcname=path.name)
    return buffer.getvalue()


def pack_files(contents: Mapping[str, bytes]) -> bytes:
    """Files by path as tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", errors="surrogateescape") as tar:
        for path, data in contents.items():
            info = tarfile.TarInfo(path)
            info.size, info.mtime = len(data), int(time.time())
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpack_files(data: bytes) -> dict[str, bytes]:
    """The regular files of an archive by path; nothing of it is written.

    Raises:
        FileAccessError: It is no whole archive.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    found[member.name] = content.read()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise FileAccessError(f"the sandbox's archive cannot be read: {error}") from error
    return found


def unpack(data: bytes, target: Path) -> None:
    """Unpack what a sandbox packed; nothing lands outside of `target`.

    Links are made last, so that nothing is written through one.

    Raises:
        PathEscape: A member is a device or a pipe, or points out of the folder.
        FileAccessError: It is no whole archive, or cannot be written.
    """
    links: list[tuple[Path, str]] = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                place = target / _check_path_stays_inside(member.name, member.name)
                if member.issym():
                    _check_path_stays_inside(
                        member.linkname, member.name, PurePosixPath(member.name).parent
                    )
                    place.parent.mkdir(parents=True, exist_ok=True)
                    links.append((place, member.linkname))
                elif member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    _write_tar_member_to_disk(tar, member, place)
        for place, linked in links:
            place.symlink_to(linked)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FileAccessError(f"the sandbox's archive cannot be unpacked: {error}") from error


def _write_tar_member_to_disk(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    content = tar.extractfile(member) if member.isreg() or member.islnk() else None
    if content is None:
        raise PathEscape(f"the sandbox packed {member.name}, which is a device or a pipe")
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("xb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(member.mode & 0o777 | 0o600)


def _check_path_stays_inside(path: str, name: str, folder: PurePosixPath = _HERE) -> PurePosixPath:
    """The path, if it stays in the archive's folder however its links are resolved.

    `..` counts only where it begins a link's path: behind a name it may be a link's parent.
    """
    parts = PurePosixPath(path).parts
    up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if path.startswith("/") or ".." in parts[up:] or up > len(folder.parts):
        raise PathEscape(f"the sandbox packed {name}, which leads out of its folder to {path}")
    return PurePosixPath(path)
