"""A rule of environments is declared in one file and read where it acts: nothing carries it."""

import ast
from contextlib import closing
from pathlib import Path
from typing import get_type_hints

import pytest

import agentrl.envs.declaration
from agentrl.envs import ToolEnv
from agentrl.envs.calculator import Calculator
from agentrl.envs.declaration import DeclaredRules, EnvRules, rules_of
from agentrl.errors import ConfigError

FOLDER = Path(agentrl.envs.declaration.__file__).parent
MACHINERY = (
    *("declaration", "toolenv", "turn_rules", "hooks", "remote", "context", "scoring"),
    *("gym_adapter", "token_env", "tasks", "resolve", "check", "transition"),
)


def named_in(rule: str) -> set[str]:
    """The files that have the rule as a name or an attribute."""
    found: set[str] = set()
    for name in MACHINERY:
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
            words = (getattr(node, key, None) for key in ("id", "attr", "arg"))
            if rule in [word for word in words if isinstance(word, str)]:
                found.add(name)
    return found


@pytest.mark.parametrize("rule", ["max_turns", "warn_turns"])
def test_a_rule_of_turns_is_named_in_two_files(rule: str) -> None:
    assert named_in(rule) == {"declaration", "turn_rules"}


def test_other_rules_are_named_where_they_act_here_and_in_a_process_of_their_own() -> None:
    acts = {"declaration", "toolenv", "turn_rules", "hooks", "remote"}
    for rule in EnvRules.model_fields:
        assert named_in(rule) <= acts
        assert len(named_in(rule)) <= 3, rule


def test_what_is_declared_is_what_is_carried() -> None:
    assert get_type_hints(DeclaredRules).keys() == EnvRules.model_fields.keys()
    assert rules_of(Calculator).max_turns == Calculator.max_turns


def test_a_rule_may_be_set_on_an_instance_and_is_checked_there_too() -> None:
    env = Calculator()
    env.max_turns = 1
    assert (rules_of(env).max_turns, rules_of(Calculator).max_turns) == (1, 4)
    for rule, value, wanted in (
        ("max_turns", 0, "a number above 0"),
        ("warn_turns", -1, "a number of at least 0"),
        ("grace_s", float("nan"), "a number above 0"),
        ("max_tool_tokens", 2.5, "an integer"),
    ):
        changed = Calculator()
        setattr(changed, rule, value)
        refused = pytest.raises(ConfigError, match=rf"Calculator\.{rule} is .*, expected {wanted}")
        with closing(changed), refused:
            changed.reset(seed=0)


def test_a_limit_of_time_may_be_none_at_all() -> None:
    class Patient(ToolEnv):
        hook_timeout_s = float("inf")

    assert rules_of(Patient).hook_timeout_s == float("inf")
