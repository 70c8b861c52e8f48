"""`python -m agentrl`: the command line."""

import sys

from agentrl.cli import entry

if __name__ == "__main__":
    sys.exit(entry())
