"""Loading a folder, and text that stays text."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as RawTokenizer

from agentrl.errors import ConfigError
from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.template_probe import USER
from agentrl.types import ToolSchema

MakeFolder = Callable[..., Path]
same_fixture = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


load = cache(Tokenizer.load)


def hostile(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    """Texts made of control tokens, parts of them and anything else."""
    parts = [c[:k] for c in tokenizer.controls for k in range(1, len(c) + 1)]
    parts += [c[k:] for c in tokenizer.controls for k in range(1, len(c))]
    return st.lists(st.one_of(st.sampled_from(parts), st.text(max_size=4)), max_size=8).map("".join)


def test_what_a_folder_says(qwen_like: Path) -> None:
    tokenizer = Tokenizer.load(qwen_like)
    assert tokenizer.eos_token is not None
    assert (tokenizer.eos_token.text, tokenizer.eos_token.id) == ("<|im_end|>", 2)
    assert tokenizer.bos_token is None
    assert tokenizer.added_tokens["<tool_call>"] < tokenizer.vocab_size
    assert tokenizer.vocab_size == max(tokenizer.added_tokens.values()) + 1
    assert "        " in tokenizer.added_tokens
    assert "        " not in tokenizer.controls


@given(data=st.data())
@same_fixture
def test_no_control_token_comes_from_text(qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = load(qwen_like)
    text = data.draw(hostile(tokenizer))
    ids = tokenizer.encode(text, specials=False)
    assert not set(ids) & set(tokenizer.controls.values())
    assert tokenizer.decode(ids) == text


@given(text=st.text())
@same_fixture
def test_benign_text_has_its_usual_ids(qwen_like: Path, text: str) -> None:
    tokenizer = load(qwen_like)
    usual = RawTokenizer.from_file(str(qwen_like / "tokenizer.json")).encode(text).ids
    if not set(usual) & set(tokenizer.controls.values()):
        assert tokenizer.encode(text, specials=False) == usual


@given(data=st.data())
@same_fixture
def test_pieces_are_encoded_as_one_text(qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = load(qwen_like)
    words = st.text("ab \n<|>", max_size=4)
    pieces = data.draw(st.lists(st.one_of(words, st.sampled_from(sorted(tokenizer.controls)))))
    ids = [tokenizer.controls.get(piece, piece) for piece in pieces]
    assert tokenizer.encode_pieces(ids) == tokenizer.encode("".join(pieces), specials=True)


def test_special_tokens_are_recognised_on_request_only(qwen_like: Path) -> None:
    tokenizer = Tokenizer.load(qwen_like)
    assert tokenizer.encode("<|im_end|><think>", specials=True) == [
        tokenizer.controls["<|im_end|>"],
        tokenizer.controls["<think>"],
    ]


def test_decoding_keeps_control_tokens_and_survives_partial_characters(qwen_like: Path) -> None:
    tokenizer = Tokenizer.load(qwen_like)
    ids = tokenizer.encode("é€😀<|im_end|>", specials=True)
    assert tokenizer.decode(ids) == "é€😀<|im_end|>"
    for end in range(len(ids)):
        assert "é€😀".startswith(tokenizer.decode(ids[:end]).rstrip("\ufffd"))
    assert tokenizer.decode([]) == ""


@given(data=st.data())
@same_fixture
def test_any_ids_have_the_librarys_text(qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = load(qwen_like)
    raw = RawTokenizer.from_file(str(qwen_like / "tokenizer.json"))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=12))
    assert tokenizer.decode(ids) == raw.decode(ids, skip_special_tokens=False)


def test_added_tokens_beyond_the_byte_alphabet_have_the_librarys_text() -> None:
    raw = RawTokenizer(models.BPE({"Ġ": 0, "Ã": 1, "©": 2, "ĺ": 3}, []))
    raw.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    raw.add_tokens([AddedToken(text) for text in ("日本", "é", " a", "Ġx", "\n", "Ã©日")])  # pyright: ignore[reportUnknownMemberType]
    tokenizer = Tokenizer(raw.to_str(), "{{ messages }}")
    for ids in itertools.product(range(11), repeat=3):
        assert tokenizer.decode(ids) == raw.decode(list(ids), skip_special_tokens=False)


def test_words_in_the_vocabulary_are_no_way_in() -> None:
    vocabulary = {"[UNK]": 0, "<end>": 1, "hello": 2, "world": 3}
    raw = RawTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.add_special_tokens([AddedToken("<end>"), AddedToken("[UNK]")])  # pyright: ignore[reportUnknownMemberType]
    tokenizer = Tokenizer(raw.to_str(), "{{ messages }}")
    assert tokenizer.encode("<end>", specials=True) == [1]
    assert 1 not in tokenizer.encode("<end>", specials=False)


def test_a_missing_folder_or_file_is_said(tmp_path: Path, make_folder: MakeFolder) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    folder = make_folder("{{ messages }}")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="has no chat template; add"):
        Tokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no model"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "template",
    ["plain", [{"name": "rag", "template": "x"}, {"name": "default", "template": "plain"}]],
)
def test_a_template_in_the_configuration_counts(make_folder: MakeFolder, template: object) -> None:
    folder = make_folder("", chat_template=template)
    (folder / "chat_template.jinja").unlink()
    assert Tokenizer.load(folder).template.source == "plain"


def test_the_template_for_tools_is_used_with_tools(
    make_folder: MakeFolder, tools: tuple[ToolSchema, ...]
) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    source += "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    with_tools = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + source
    named = {"default": source, "tool_use": with_tools}
    listed = [{"name": name, "template": text} for name, text in named.items()]
    in_settings = make_folder("", chat_template=listed)
    (in_settings / "chat_template.jinja").unlink()
    in_files = make_folder(source)
    (in_files / "additional_chat_templates").mkdir()
    (in_files / "additional_chat_templates" / "tool_use.jinja").write_text(with_tools)
    for folder in (in_settings, in_files):
        tokenizer = Tokenizer.load(folder)
        assert Renderer(tokenizer, tools).tools_in_template
        assert not Renderer(tokenizer).tools_in_template
        assert tokenizer.decode(Renderer(tokenizer, tools).prompt([USER])).startswith('{"type')
        assert tokenizer.with_template("x").for_tools.template.source == "x"


def test_variants_without_a_default_are_named(make_folder: MakeFolder) -> None:
    folder = make_folder(
        "", chat_template=[{"name": "rag", "template": "x"}, {"name": "b", "template": "y"}]
    )
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"named \['b', 'rag'\] and none named default"):
        Tokenizer.load(folder)


def test_a_template_of_a_processor_counts(make_folder: MakeFolder) -> None:
    folder = make_folder("")
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "plain"}))
    assert Tokenizer.load(folder).template.source == "plain"


def test_special_tokens_may_be_objects(make_folder: MakeFolder) -> None:
    folder = make_folder("x", eos_token=None, bos_token={"content": "<|bos|>"})
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}}), encoding="utf-8"
    )
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.eos_token is not None
    assert tokenizer.bos_token is not None
    assert (tokenizer.bos_token.id, tokenizer.eos_token.id) == (3, 2)


def test_a_broken_template_is_said(make_folder: MakeFolder) -> None:
    with pytest.raises(ConfigError, match="cannot be compiled"):
        Tokenizer.load(make_folder("{% if %}"))
