import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.sandboxes import FileAccessError, PathEscape
from agentrl.sandboxes.files import pack, unpack


def _archive(*members: tuple[str, str, bytes | str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for kind, name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE,
                         "device": tarfile.CHRTYPE}[kind]  # fmt: skip
            info.linkname = content
            tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("file", "/abs", b"x")],
        [("file", "../out", b"x")],
        [("file", "a/../../out", b"x")],
        [("link", "l", "/etc/passwd")],
        [("link", "l", "../out")],
        [("link", "a/l", "../../out")],
        [("link", "a/b/k", "../.."), ("link", "a/b/l", "k/../..")],
        [("link", "l", "."), ("link", "l/x", "../y/..")],
        [("fifo", "f", "")],
        [("device", "d", "")],
    ],
)
def test_what_leads_out_is_refused(
    members: list[tuple[str, str, bytes | str]], tmp_path: Path
) -> None:
    target = tmp_path / "in" / "target"
    with pytest.raises(PathEscape, match="the sandbox packed"):
        unpack(_archive(*members), target)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "in" / "out").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    members: list[tuple[str, str, bytes | str]] = [
        ("link", "l", "folder"),
        ("file", "l/file", b"x"),
        ("file", "folder/file", b"y"),
    ]
    with pytest.raises(FileAccessError):
        unpack(_archive(*members), tmp_path / "target")
    assert (tmp_path / "target" / "folder" / "file").read_bytes() == b"y"


def test_inner_links_come_along(tmp_path: Path) -> None:
    members: list[tuple[str, str, bytes | str]] = [
        ("file", "a/file", b"x"),
        ("link", "a/b/link", "../file"),
        ("hard", "again", "a/file"),
    ]
    unpack(_archive(*members), tmp_path)
    assert (tmp_path / "a/b/link").read_bytes() == b"x"
    assert (tmp_path / "again").read_bytes() == b"x"


def test_a_broken_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="cannot be unpacked"):
        unpack(b"x" * 2000, tmp_path)


_names = st.text("ab.", min_size=1, max_size=3)
_paths = st.lists(_names, min_size=1, max_size=4).map("/".join)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["file", "link"]), _paths, _paths), max_size=6))
def test_no_archive_gets_out(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, str, str]]
) -> None:
    """Whatever is unpacked: no link that exists leads out of the folder."""
    root = tmp_path_factory.mktemp("unpack").resolve()
    target = root / "1" / "2" / "target"
    made = [(kind, name, b"x" if kind == "file" else to) for kind, name, to in members]
    try:
        unpack(_archive(*made), target)
    except FileAccessError:
        return
    for path in target.rglob("*"):
        try:
            assert path.resolve().is_relative_to(target), path
        except (RuntimeError, OSError):
            continue  # a loop
    assert [path.name for path in (root / "1" / "2").iterdir()] == ["target"]


def test_packing_leaves_the_folder_itself_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path))) as tar:
        assert tar.getnames() == ["a", "a/f"]
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path / "a" / "f"))) as tar:
        assert tar.getnames() == ["f"]
