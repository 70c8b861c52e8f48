"""What a template may do with contents."""

import pytest

from agentrl.tokens.jinja import ChatTemplate

LOOP = "{% for m in messages %}BODY{% endfor %}"
MACRO = "{% macro show(c) %}{{ WHAT }}{% endmacro %}"


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content }}",
        "{{ m['content'] | trim }}",
        "{% if m.content is string and m.content %}{{ m.role + ' ' + m.content }}{% endif %}",
        "{% set c = m.content %}{{ c.split('</think>')[-1].lstrip('\n') }}",
        "{% if '</think>' in m.content or m.content.startswith('<tool>') %}x{% endif %}",
        "{% if messages | length > 3 and m.role[0] == 'u' %}{{ m.content }}{% endif %}",
        MACRO.replace("WHAT", "c") + "{{ show(m.content) }}",
    ],
)
def test_plain_uses(body: str) -> None:
    assert ChatTemplate(LOOP.replace("BODY", body), {}).verbatim


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content[:9] }}",
        "{% if m.content[0] == 'x' %}x{% endif %}",
        "{% if m.content == 'x' %}x{% endif %}",
        "{% if m.content | length > 9 %}x{% endif %}",
        "{% if m.get('content') | lower == 'x' %}x{% endif %}",
        "{% if 'word' in m.content %}x{% endif %}",
        "{% if '\n' in m.content %}x{% endif %}",
        "{% if m.content.split('\n')[0] %}x{% endif %}",
        "{% set c = m.content %}{% set d = c ~ '' %}{{ d | first }}",
        "{% set c %}{{ m.content }}{% endset %}{{ c[:9] }}",
        "{% set n = namespace(c='') %}{% set n.c = m.content %}{{ n.c | last }}",
        "{% for letter in m.content %}{{ letter }}{% endfor %}",
        "{% filter truncate(9) %}{{ m.content }}{% endfilter %}",
        MACRO.replace("WHAT", "c[:9]") + "{{ show(m.content) }}",
        MACRO.replace("WHAT", "c.content") + "{{ show(m)[:9] }}",
    ],
)
def test_uses_that_look_into_contents(body: str) -> None:
    assert not ChatTemplate(LOOP.replace("BODY", body), {}).verbatim
