"""`python -m agentrl`: the command line."""

import sys

from agentrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
