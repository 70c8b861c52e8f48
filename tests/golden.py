"""What has to stay as it is while the code is rearranged: texts, names and ids in `goldens/`.

A text that changes on purpose is written anew by `GOLDENS=write` and committed alone, so that its
difference lists old and new.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "goldens"


def check_golden(name: str, found: Mapping[str, object], *, part: bool = False) -> None:
    """Hold what was found against the golden called `name`; `part`: it has more than that."""
    file = _FOLDER / f"{name}.json"
    if os.environ.get("GOLDENS") == "write":
        before: dict[str, object] = {}
        if part and file.exists():
            before = json.loads(file.read_text())
        text = json.dumps({**before, **found}, indent=1, sort_keys=True, ensure_ascii=False)
        file.write_text(text + "\n")
    golden = json.loads(file.read_text())
    for key in found if part else sorted(golden.keys() | found.keys()):
        assert key in golden, f"{key} is new in {name}"
        assert key in found, f"{key} is gone from {name}"
        assert found[key] == golden[key], f"{key} of {name}"
