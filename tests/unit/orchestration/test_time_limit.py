"""A chat template without an end is given up."""

import shutil
import signal
from pathlib import Path

import pytest

from agentrl.envs.calculator import Calculator
from agentrl.envs.check import check_env_class
from agentrl.errors import ConfigError
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.model_files import checked_codec
from agentrl.orchestration.preflight import make_plan
from agentrl.rollout import Codec
from agentrl.tokens import Tokenizer, time_limit

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"


def test_a_run_gives_up_a_template_without_an_end(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(ENDLESS)
    (folder / "config.json").write_text("{}")
    plan = make_plan(load_run_config(flags=["--env", "calculator"]).config)
    tokenizer = Tokenizer.load(folder)
    monkeypatch.setattr(time_limit, "TEMPLATE_LIMIT_S", 0.2)
    with pytest.raises(ConfigError, match=r"did not finish within 0\.2 s; look for a loop"):
        checked_codec(plan, folder)
    with pytest.raises(ConfigError, match=r"did not finish within 0\.2 s; look for a loop"):
        Codec(tokenizer).renderer(())  # as an export does
    with pytest.raises(ConfigError, match=r"did not finish within 0\.2 s; look for a loop"):
        check_env_class(Calculator, num_tasks=2, tokenizer=tokenizer)


def test_a_timer_that_was_set_before_goes_on() -> None:
    left = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with time_limit.template_time_limit():
            pass
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
