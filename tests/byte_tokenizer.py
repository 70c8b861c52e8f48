"""A small tokenizer: one token for each byte, ChatML, the Hermes format."""

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from agentrl.tokens import Tokenizer

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = RawTokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    for text in ("<|im_start|>", "<|im_end|>"):
        raw.add_special_tokens([AddedToken(text, special=True)])  # pyright: ignore[reportUnknownMemberType]  # untyped
    return Tokenizer(raw.to_str(), TEMPLATE, special_tokens={"eos_token": "<|im_end|>"})
