"""How a test starts a command whose signals it sends, whatever its own parent ignores."""

IN_FOREGROUND = ("/usr/bin/env", "--default-signal=INT", "--default-signal=TERM")
IN_BACKGROUND = ("/usr/bin/env", "--ignore-signal=INT", "--default-signal=TERM")
"""As a shell without job control starts what has an `&` behind it."""
