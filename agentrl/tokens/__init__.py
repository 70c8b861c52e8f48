"""Token ids and nothing else: the record that training reads, and rendering to and from it."""

from agentrl.tokens.formats import Hermes, ToolFormat, choose_format
from agentrl.tokens.hash_chain import seal
from agentrl.tokens.record import TokenRecord
from agentrl.tokens.render import Continuation, Reasoning, Renderer, Results
from agentrl.tokens.stream import TextStream
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.tokens.verify import verify_batch, verify_segment

__all__ = [
    "Continuation",
    "Hermes",
    "Reasoning",
    "Renderer",
    "Results",
    "TextStream",
    "TokenRecord",
    "Tokenizer",
    "ToolFormat",
    "choose_format",
    "seal",
    "verify_batch",
    "verify_segment",
]
