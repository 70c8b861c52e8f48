"""`Tokenizer`: a Hugging Face folder's tokenizer and chat template, without transformers.

What was sampled is read quickly from the bytes of its tokens: a byte-level vocabulary (GPT-2's;
Llama 3, Qwen and SmolLM have it too) writes each byte as a character, and a text is the bytes of
its tokens in a row, with U+FFFD where they are no UTF-8.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import tokenizers
from tokenizers import decoders

from agentrl.errors import ConfigError
from agentrl.tokens.jinja import ChatTemplate
from agentrl.tokens.round_trip import check_round_trip

_PRIVATE_USE = 0xF0000
"""First code point of a plane that no text uses."""


class Pieces(dict[int, bytes]):
    """The bytes of a token by its id, found when they are first asked for."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        """As the tokenizer's own `decode`, special tokens kept, in a fifth of the time."""
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", "replace")

    def __missing__(self, number: int) -> bytes:
        token: str | None = self._tokenizer.id_to_token(number)
        if token is None:
            return b""
        try:
            piece = bytes(map(_BYTES.__getitem__, token))
        except KeyError:  # an added token, unless all of it happens to be letters of the alphabet
            piece = token.encode()
        self[number] = piece
        return piece


_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)).difference(_SEEN))
_BYTES = {chr(b): b for b in _SEEN} | {chr(0x100 + n): b for n, b in enumerate(_OTHERS)}
"""The character of each byte: its own if it can be seen, else the next one from U+0100."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token by its text and its id."""

    text: str
    id: int


class Tokenizer:
    """Ids from text and back, for the tokenizer in `tokenizer.json`; thread-safe.

    An added token is a *control* token unless it is made of white space only: control tokens are
    what a template's scaffold is made of, and never come from the text of a message.
    """

    def __init__(
        self,
        definition: str,
        template: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        adds_bos: bool = False,
    ) -> None:
        """`definition` is the content of `tokenizer.json`, `template` that of the chat template.

        `special_tokens` are `bos_token`, `eos_token` and so on; `adds_bos` says that every prompt
        begins with the BOS even where the template writes none.
        """
        self._definition = definition
        self._full = _parse_tokenizer_json(definition)
        self._full.no_truncation()
        self._full.no_padding()
        # None for a vocabulary of another kind.
        decoder: Any = self._full.decoder
        self._pieces = Pieces(self._full) if isinstance(decoder, decoders.ByteLevel) else None
        special_tokens = self._special_tokens = dict(special_tokens or {})
        self.template = ChatTemplate(template, special_tokens)
        self.for_tools = self
        """With the chat template for conversations with tools, where the folder has one more."""
        added = self._full.get_added_tokens_decoder()
        self.added_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: number for number, token in sorted(added.items())}
        )
        self.controls: Mapping[str, int] = MappingProxyType(
            {text: number for text, number in self.added_tokens.items() if text.strip()}
        )
        self.ids: Mapping[str, int] = MappingProxyType(self._full.get_vocab())
        """The id of every token."""
        self.vocab_size = max(self.ids.values()) + 1
        self.bos_token = self._find_special_token(special_tokens.get("bos_token"))
        self.eos_token = self._find_special_token(special_tokens.get("eos_token"))
        first = self._full.encode("a", add_special_tokens=True).ids[:1]
        bos = self.bos_token
        self.adds_bos = bos is not None and (adds_bos or first == [bos.id])
        self._single_words = {token.content for token in added.values() if token.single_word}
        self._check_template_avoids_single_words()

    @classmethod
    def load(cls, folder: Path | str, *, template: str | None = None) -> "Tokenizer":
        """The tokenizer of a model folder, with its own chat template unless one is given.

        Raises ConfigError if the folder, its `tokenizer.json` or its chat template is missing, or
        if it does not give back what it was given.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigError(f"model folder {folder} does not exist; give the path of a folder")
        definition = folder / "tokenizer.json"
        if not definition.is_file():
            raise ConfigError(
                f"model folder {folder} has no tokenizer.json; save its tokenizer in the "
                "fast format, with save_pretrained"
            )
        content = _read_json_object_or_empty(definition)
        if not content.get("model"):
            raise ConfigError(f"{definition} has no model; save the tokenizer again")
        config = _read_json_object_or_empty(folder / "tokenizer_config.json")
        special = _read_json_object_or_empty(folder / "special_tokens_map.json") | config
        found = _read_chat_templates(folder, config) if template is None else {"default": template}
        tokenizer = cls(
            definition.read_text(encoding="utf-8"),
            found["default"],
            special_tokens=_map_token_roles_to_texts(special),
            adds_bos=config.get("add_bos_token") is True,
        )
        check_round_trip(content, tokenizer._full)
        if "tool_use" in found:
            tokenizer.for_tools = tokenizer.with_template(found["tool_use"])
        return tokenizer

    def with_template(self, template: str) -> "Tokenizer":
        """The same tokenizer with another chat template, without loading anything again."""
        _ = (
            self._twin_for_plain_text,
            self.control_pattern,
            self.control_heads,
        )  # made once for all of them
        other = copy(self)
        other.template = ChatTemplate(template, self._special_tokens)
        other.for_tools = other
        other._check_template_avoids_single_words()
        return other

    def with_markers(self, template: str) -> "Tokenizer":
        """Another template on this tokenizer, the markers in its text added as control tokens."""
        raw = tokenizers.Tokenizer.from_str(self._definition)
        special = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
        markers = [*ChatTemplate(template, {}).markers, *special.values()]
        added = [tokenizers.AddedToken(marker, normalized=False) for marker in markers]
        raw.add_special_tokens(added)  # pyright: ignore[reportUnknownMemberType]
        return Tokenizer(raw.to_str(), template, special_tokens=special)

    def __reduce__(self) -> tuple[object, ...]:
        """By what it was made of."""
        with_tools = None if self.for_tools is self else self.for_tools.template.source
        made_of = self._definition, self.template.source, self._special_tokens, self.adds_bos
        return _make_tokenizer, (*made_of, with_tools)

    def encode(self, text: str, *, specials: bool) -> list[int]:
        """Ids of `text`. With `specials` false, no control token is recognised in it."""
        if specials:
            return self._full.encode(text, add_special_tokens=False).ids
        return self.encode_pieces([text])

    def encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        """Ids of text (strings) and control tokens (ints), encoded as one sequence.

        Equal to encoding the joined text where no string holds a control token's text.
        """
        return self._twin_for_plain_text.encode(pieces)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of `ids` with control tokens kept; incomplete UTF-8 gives U+FFFD.

        `skip_special` leaves out those that the tokenizer calls special.
        """
        if self._pieces is not None and not skip_special:
            return self._pieces.text(ids)
        return self._full.decode(list(ids), skip_special_tokens=skip_special)

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Finds the text of control tokens, the longest first, as the tokenizer does."""
        longest_first = sorted(self.controls, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def control_heads(self) -> frozenset[str]:
        """Every beginning of a control token's text, without the whole ones."""
        return frozenset(text[:k] for text in self.controls for k in range(1, len(text)))

    @cached_property
    def _twin_for_plain_text(self) -> "_TextualTwin":
        return _TextualTwin(self._definition, self.controls)

    def _check_template_avoids_single_words(self) -> None:
        """Raise ConfigError if the template is made of tokens that count only between spaces."""
        written = "".join(self.template.literals)
        for text in sorted(self._single_words & self.controls.keys()):
            if text in written:
                raise ConfigError(
                    f"added token {text!r} is a single_word in tokenizer.json, so beside a letter "
                    'it is plain text, and the chat template writes it; set "single_word" to false'
                )

    def _find_special_token(self, text: str | None) -> SpecialToken | None:
        number = self._full.token_to_id(text) if text else None
        return None if text is None or number is None else SpecialToken(text, number)


def _make_tokenizer(
    definition: str, template: str, special: dict[str, str], adds_bos: bool, with_tools: str | None
) -> Tokenizer:
    made = Tokenizer(definition, template, special_tokens=special, adds_bos=adds_bos)
    if with_tools is not None:
        made.for_tools = made.with_template(with_tools)
    return made


class _TextualTwin:
    """The same tokenizer with its control tokens renamed to secret texts.

    No text can hold them, so text gives text; and the ids of a control token can be asked for, by
    its secret name, in the midst of text, so that all of it is encoded as one sequence.
    """

    def __init__(self, definition: str, controls: Mapping[str, int]) -> None:
        nonce = private_text()
        names = {text: nonce + chr(_PRIVATE_USE + k) for k, text in enumerate(controls)}
        self._name_of = {number: names[text] for text, number in controls.items()}
        renamed = json.dumps(_rename_control_tokens(json.loads(definition), names))
        self._tokenizer = tokenizers.Tokenizer.from_str(renamed)
        for text, number in controls.items():
            if self._tokenizer.token_to_id(names[text]) != number:
                raise ConfigError(
                    f"added token {text!r} has no stable id in tokenizer.json; "
                    "save the tokenizer again with save_pretrained"
                )

    def encode(self, pieces: Sequence[str | int]) -> list[int]:
        text = "".join(self._name_of[p] if isinstance(p, int) else p for p in pieces)
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def private_text() -> str:
    """Eight random characters that no text holds and nobody can guess."""
    return "".join(chr(_PRIVATE_USE + secrets.randbelow(0xFFF0)) for _ in range(8))


def _rename_control_tokens(definition: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The definition with control tokens under other names, in added tokens and in the model."""
    for token in definition["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    definition |= {"post_processor": None, "truncation": None, "padding": None}
    model = definition["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(t, t): number for t, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(t, t), score] for t, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        merges: list[str | list[str]] = model["merges"]
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
        kept = [not names.keys() & {*pair, "".join(pair)} for pair in pairs]
        model["merges"] = list(compress(merges, kept))
    return definition


def _parse_tokenizer_json(definition: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; raises ConfigError if it cannot be made or knows no text."""
    try:
        parsed = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:
        if type(error) is not Exception:
            raise
        # The library's own errors have no class.
        raise ConfigError(
            f"the tokenizer.json cannot be used ({error}); save the tokenizer again"
        ) from error
    if not parsed.get_vocab(with_added_tokens=False):
        raise ConfigError("the tokenizer.json has no vocabulary; save the tokenizer again")
    return parsed


def _read_json_object_or_empty(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); restore the file") from error
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def read_template(path: Path) -> str:
    """The source in a template file. Raises ConfigError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"template file {path} cannot be read ({error}); give a readable file in UTF-8"
        ) from error


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The folder's chat templates by name, at least "default"; files win over the settings."""
    if (path := folder / "chat_template.jinja").is_file():
        others = (folder / "additional_chat_templates").glob("*.jinja")
        return {other.stem: read_template(other) for other in others} | {
            "default": read_template(path)
        }
    of_processor = _read_json_object_or_empty(folder / "chat_template.json")
    named = _map_templates_by_name(config.get("chat_template") or of_processor.get("chat_template"))
    if named and "default" not in named:
        raise ConfigError(
            f"model folder {folder} has chat templates named {sorted(named)} and none named "
            "default; put the one to use into a chat_template.jinja"
        )
    if not named:
        raise ConfigError(
            f"model folder {folder} has no chat template; add a chat_template.jinja, or take an "
            "instruction-tuned model"
        )
    return named


def _map_templates_by_name(templates: object) -> dict[str, str]:
    """`[{"name": "default", "template": ...}, ...]` as a mapping; one text is the default."""
    if isinstance(templates, str):
        return {"default": templates}
    entries = cast("list[object]", templates) if isinstance(templates, list) else []
    known = [cast("dict[str, object]", entry) for entry in entries if isinstance(entry, dict)]
    pairs = [(entry.get("name"), entry.get("template")) for entry in known]
    return {n: text for n, text in pairs if isinstance(n, str) and isinstance(text, str)}


def _map_token_roles_to_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """`{"bos_token": "<s>", ...}`: a token stands as text or as an object with its content."""
    texts: dict[str, str] = {}
    for key, value in config.items():
        content = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            texts[key] = content
    return texts
