"""A chat template without an end is given up."""

import shutil
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.model_files import checked_codec
from agentrl.orchestration.preflight import make_plan
from agentrl.tokens import time_limit

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"


def test_a_run_gives_up_a_template_without_an_end(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(ENDLESS)
    (folder / "config.json").write_text("{}")
    plan = make_plan(load_run_config(flags=["--env", "calculator"]).config)
    monkeypatch.setattr(time_limit, "TEMPLATE_LIMIT_S", 0.2)
    with pytest.raises(ConfigError, match=r"did not finish within 0\.2 s; look for a loop"):
        checked_codec(plan, folder)
