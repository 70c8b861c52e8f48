"""What a relative path in a configuration is relative to: the file that says it.

A flag or a keyword is said in the working folder. What is stored is absolute, so that a run can be
resumed from anywhere. A field of type Path is anchored; a text is, where its annotation says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast, get_args

from pydantic.fields import FieldInfo

REWARD_MODEL: Final = "reward_model:"
"""Begins a verifier's name that goes on with a folder, and perhaps with @ and a device."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """How a text holds a path: it is one, or `path/file.py:Name`, or a folder among names."""

    kind: Literal["path", "reference", "folder"]
    known: tuple[str, ...] = ()
    """Names that are no folders."""


PATH: Final = Anchor("path")
PathText = Annotated[str, PATH]
Reference = Annotated[str, Anchor("reference")]


def anchor_of(field: FieldInfo) -> Anchor | None:
    """How the values of a field hold paths; None if they hold none."""
    return next(_find_path_anchors_in_annotation((field.annotation, *field.metadata)), None)


def anchor_value(value: object, anchor: Anchor, folder: Path) -> object:
    """The value with its paths absolute, those that are relative from the folder on."""
    if isinstance(value, str):
        return _resolve_anchored_setting(value, anchor, folder) if value else value
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {key: anchor_value(item, anchor, folder) for key, item in items}
    if isinstance(value, list | tuple):
        return [anchor_value(item, anchor, folder) for item in cast("list[object]", value)]
    return value


def _resolve_anchored_setting(text: str, anchor: Anchor, folder: Path) -> str:
    match anchor.kind:
        case "path":
            return _make_path_absolute(text, folder)
        case "reference":
            return anchored_reference(text, folder)
        case "folder":
            if text in anchor.known or is_url(text):
                return text
            is_one = text.startswith((".", "~")) or text.count("/") > 1 or (folder / text).is_dir()
            return _make_path_absolute(text, folder) if is_one else text


def anchored_reference(ref: str, folder: Path) -> str:
    """A reference whose file, or whose reward model's folder, is absolute."""
    if ref.startswith(REWARD_MODEL):
        place, at, device = ref.removeprefix(REWARD_MODEL).partition("@")
        return f"{REWARD_MODEL}{_make_path_absolute(place, folder)}{at}{device}"
    place, colon, name = ref.rpartition(":")
    return f"{_make_path_absolute(place, folder)}{colon}{name}" if is_file(place) else ref


def is_url(text: str) -> bool:
    """True for the address of a server, in a key that takes a folder or one."""
    return text.startswith(("http://", "https://"))


def is_file(place: str) -> bool:
    """True if the first part of a reference is a file, and no module."""
    return place.endswith(".py") or "/" in place


def _make_path_absolute(text: str, folder: Path) -> str:
    return str((folder / Path(text).expanduser()).resolve())


def _find_path_anchors_in_annotation(parts: tuple[Any, ...]) -> Iterator[Anchor]:
    for part in parts:
        if isinstance(part, Anchor):
            yield part
        elif part is Path:
            yield PATH
        else:
            yield from _find_path_anchors_in_annotation(
                (*get_args(part), *getattr(part, "__metadata__", ()))
            )
