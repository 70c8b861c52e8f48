"""What chat templates may rely on."""

from datetime import datetime, tzinfo
from typing import Self

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens.jinja import ChatTemplate


def render(source: str, **special: str) -> str:
    messages = [{"role": "user", "content": "<a> & 'ü'"}]
    return ChatTemplate(source, special).render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content | tojson }}", "\"<a> & 'ü'\""),
        ("{{ {'b': 1, 'a': [2]} | tojson }}", '{"b": 1, "a": [2]}'),
        ("{{ {'b': 1} | tojson(indent=1) }}", '{\n "b": 1\n}'),
        ("{% generation %}a{% set x = 'b' %}{{ x }}{% endgeneration %}c", "abc"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ bos_token }}{{ tools is none }}{{ add_generation_prompt }}", "<s>TrueTrue"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
    ],
)
def test_templates_render_as_in_transformers(source: str, expected: str) -> None:
    assert render(source, bos_token="<s>") == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('alternate roles') }}", r"of user \(alternate roles\)"),
        ("{{ missing | tojson }}", "refuses a conversation of user"),
        ("{{ messages.append(1) }}", "refuses a conversation of user"),
        ("{{ ''.__class__.__mro__ }}", "refuses a conversation of user"),
        ("{{ 1 // 0 }}", "refuses a conversation of user"),
        ("{{ 2.0 ** 100000 }}", "refuses a conversation of user"),
        ("{{ 'x' * 10 ** 18 }}", "refuses a conversation of user"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses a conversation of user"),
        ("{% if x %}" * 150 + "{% endif %}" * 150, "cannot be compiled"),
    ],
)
def test_what_goes_wrong_in_a_template_is_a_configuration_error(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render(source)


def test_the_order_of_keys_is_that_of_the_keys_without_what_guards_them() -> None:
    template = ChatTemplate("{% for k, v in messages[0] | dictsort %}{{ v }}{% endfor %}", {})
    sorts = [{"b": "2", "\U000f0001\U000ffffdA": "1", "c\U000f0001": "3"}]
    assert template.render(sorts, add_generation_prompt=True) == "123"


def test_a_run_that_passes_midnight_has_one_date(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2031, 2, 3, tzinfo=tz)

    source = "{{ strftime_now('%d %b %Y') }}"
    template = ChatTemplate(source, {})
    before = template.render([], add_generation_prompt=True)
    monkeypatch.setattr("agentrl.tokens.jinja.datetime", Tomorrow)
    assert template.render([], add_generation_prompt=True) == before
    assert ChatTemplate(source, {}).render([], add_generation_prompt=True) == "03 Feb 2031"
