"""The command line: `agentrl VERB` and `agentrl NOUN VERB`; light until a command runs."""

from agentrl.cli.dispatch import entry, main

__all__ = ["entry", "main"]
