"""Small model folders, each with a BPE tokenizer and a chat template of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as RawTokenizer

import agentrl.engine
from agentrl.types import ToolSchema

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"]
MARKERS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]

CORPUS = [
    "<|im_start|>system\nYou are a helpful assistant. Use the tools you have.\n",
    '{"type": "function", "function": {"name": "add", "description": "Adds", "parameters": ',
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}\n',
    '{"name": "add", "arguments": {"a": 12, "b": 345}}\n\n',
    "user\nWhat is 12 plus 345?\nassistant\nThe answer is 357. tool call response end start\n",
]

# In the manner of the Qwen family: a default system message, tools as JSON lines, runs of results
# in one user turn, trimmed contents, and a look into the text of user messages.
QWEN_LIKE = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}
{%- else %}{% set system = 'Be brief.' %}{% endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
{{- '\\n\\nFunctions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall them with <tool_call>JSON</tool_call>.' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{%- set flag = ' (quoted)' if message.content.startswith('<tool_response>') else '' %}
{{- '<|im_start|>' + message.role + flag + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- generation %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{ '\\n' + message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endgeneration %}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif message.role != 'system' %}
{{- raise_exception('no such role') }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# ChatML that prints whatever role there is and knows nothing of tools.
CHATML = """\
{% for message in messages %}
{% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TINY = Path(agentrl.engine.__file__).parent / "local" / "models" / "tiny_template.jinja"
TEMPLATES = {
    "qwen_like": QWEN_LIKE,
    "chatml": CHATML,
    "tiny": TINY.read_text(encoding="utf-8"),
}

MakeFolder = Callable[..., Path]


def train() -> RawTokenizer:
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS * 3, trainer)
    raw.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])  # pyright: ignore[reportUnknownMemberType]
    raw.add_tokens([AddedToken("        ", normalized=False)])  # pyright: ignore[reportUnknownMemberType]
    return raw


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """`make_folder(template, **config)` writes a model folder without weights."""

    def make(template: str, *, bos_by_tokenizer: bool = False, **config: object) -> Path:
        folder = tmp_path_factory.mktemp("model")
        raw = train()
        if bos_by_tokenizer:
            bos = raw.token_to_id("<|bos|>")
            raw.post_processor = processors.TemplateProcessing(
                single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
            )
        raw.save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
        }
        text = json.dumps(settings | config)
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session", params=sorted(TEMPLATES))
def folder(request: pytest.FixtureRequest, make_folder: MakeFolder) -> Path:
    """A model folder of each kind."""
    return make_folder(TEMPLATES[request.param])


@pytest.fixture(scope="session")
def qwen_like(make_folder: MakeFolder) -> Path:
    """A folder whose template renders tools."""
    return make_folder(QWEN_LIKE)


@pytest.fixture(scope="session")
def chatml(make_folder: MakeFolder) -> Path:
    """A folder whose template does not."""
    return make_folder(CHATML)


@pytest.fixture(scope="session")
def tools() -> tuple[ToolSchema, ...]:
    """Two tools."""
    number = {"type": "integer", "description": "a number"}
    return (
        ToolSchema(
            name="add",
            description="Add two numbers.",
            parameters={
                "type": "object",
                "properties": {"a": number, "b": number},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
        ToolSchema(
            name="write",
            description="Write a text.",
            parameters={
                "type": "object",
                "properties": {"text": {"type": "string"}, "mode": {"enum": ["w", "a"]}},
                "required": ["text"],
                "additionalProperties": False,
            },
        ),
    )
