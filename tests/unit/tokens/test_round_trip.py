"""A tokenizer gives back what it was given, or it is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer

Change = Callable[[dict[str, Any]], object]

BLANK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
BYTES = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
SENTENCE_PIECE: dict[str, object] = {
    "vocab": {"<unk>": 0, **BYTES, "▁": 257, "a": 258},
    "merges": [],
    "unk_token": "<unk>",
    "byte_fallback": True,
    "fuse_unk": True,
}


def normalize(kind: str, **settings: object) -> Change:
    return lambda content: content.update(normalizer={"type": kind, **settings})


def replace(old: str, new: str) -> Change:
    step = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return normalize("Sequence", normalizers=[{"type": "NFC"}, step])


def split_by(**pre_tokenizer: object) -> Change:
    return lambda content: content.update(pre_tokenizer=pre_tokenizer)


def remove(expression: str) -> Change:
    step = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Removed"}

    def change(content: dict[str, Any]) -> None:
        steps = [step | {"invert": False}, content["pre_tokenizer"]]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    return change


def without(*letters: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        model = content["model"]
        merges = [m for m in model["merges"] if not set("".join(m)) & set(letters)]
        kept = {t: n for t, n in model["vocab"].items() if len(t) > 1 or t not in letters}
        model |= {"merges": merges, "vocab": kept}

    return change


def only_unknown(content: dict[str, Any]) -> None:
    words = {"a": 0, "[UNK]": 1}
    content |= {"model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}}
    content["added_tokens"] = []


def by_chance(content: dict[str, Any]) -> None:
    content["model"]["dropout"] = 0.001


LOSSES: dict[str, tuple[Change, str]] = {
    "unknown": (only_unknown, r"'  \\nabcde' comes back as '\[UNK\]"),
    "digits": (without("5", "6"), r"0123456789.* comes back as .*01234789"),
    "é": (without("©"), "comes back as"),
    "strip": (normalize("Strip", strip_left=True, strip_right=True), "comes back as 'abc"),
    "left": (normalize("Strip", strip_left=True, strip_right=False), "comes back as 'abc"),
    "right": (normalize("Strip", strip_left=False, strip_right=True), "comes back as"),
    "case": (normalize("Lowercase"), "ABCDEFGH' comes back as 'stuvwxyzabcdefgh'"),
    "7": (replace("7", "8"), "0123456789.* comes back as .*0123456889"),
    "word": (replace("secret", ""), "secret.* comes back as"),
    "words": (
        normalize("Replace", pattern={"Regex": r"\b(?i)(secret|Zaphod)\b"}, content="x"),
        "ecret.* comes back as",
    ),
    "removed": (remove("Zaphod+"), "Zaphod.* comes back as"),
    "marks": (normalize("StripAccents"), "comes back as"),
    "powers": (normalize("NFKC"), r"\\xb2.* comes back as .* 2"),
    "taken apart": (normalize("NFD"), r"n\\xe9.* comes back as .*ne\\u0301"),
    "blanks": (split_by(type="WhitespaceSplit"), "comes back as"),
    "dropout": (by_chance, r"model\.dropout is 0\.001, so the same text gets other ids"),
}


def changed(original: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(original, folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", LOSSES)
def test_a_tokenizer_that_loses_or_rewrites_is_refused(
    name: str, chatml: Path, tmp_path: Path
) -> None:
    change, said = LOSSES[name]
    folder = changed(chatml, tmp_path / "model", change)
    with pytest.raises(ConfigError, match=said) as error:
        Tokenizer.load(folder)
    assert "\n" not in str(error.value)


def sentence_piece(**parts: object) -> Change:
    def change(content: dict[str, Any]) -> None:
        decoders = [BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]
        content |= {"normalizer": None, "pre_tokenizer": None, "added_tokens": []}
        content["decoder"] = {"type": "Sequence", "decoders": decoders}
        content["model"] = {"type": "BPE"} | SENTENCE_PIECE
        content |= parts

    return change


PREFIX = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, BLANK]}
STRIPPED = {
    "type": "Sequence",
    "decoders": [
        BACK,
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def metaspace(scheme: str) -> Change:
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return sentence_piece(pre_tokenizer=step, decoder=STRIPPED)


SOUND: dict[str, Change] = {
    "bytes": lambda content: None,
    "nfc": normalize("NFC"),
    "prefix": split_by(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
    "no prefix": sentence_piece(normalizer=BLANK),
    "prefix kept": sentence_piece(normalizer=PREFIX),
    "prefix stripped": sentence_piece(normalizer=PREFIX, decoder=STRIPPED),
    "metaspace first": metaspace("first"),
    "metaspace always": metaspace("always"),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_real_tokenizers_do_is_no_loss(name: str, chatml: Path, tmp_path: Path) -> None:
    Tokenizer.load(changed(chatml, tmp_path / "model", SOUND[name]))
