"""Chat templates: what models write in them works, what they must not do does not."""

import pytest

from radixcache.errors import InvalidRequestError
from radixcache.types import ChatMessage
from radixcache_engine.front.chat_template import ChatTemplate

MESSAGES = [ChatMessage("user", 'a <b> "é"'), ChatMessage("assistant", "two")]


def render(source, messages=MESSAGES, *, add_generation_prompt=True, **special):
    """Render once."""
    template = ChatTemplate(source, special)
    return template.render(messages, add_generation_prompt=add_generation_prompt)


def test_messages_and_special_tokens_are_in_reach():
    """The usual ChatML loop."""
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )

    assert render(source, bos_token="<s>") == '<s>[user]a <b> "é"[assistant]two[assistant]'
    assert render(source, add_generation_prompt=False).endswith("two")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content | tojson }}", '"a <b> \\"é\\""'),
        (
            "{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}",
            '{\n "a": [\n  2\n ],\n "b": 1\n}',
        ),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", "x"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
            "{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "two!"),
        ("{% if tools %}T{% endif %}{% if documents %}D{% endif %}-", "-"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ messages[0].tool_calls is defined }}", "False"),
    ],
)
def test_what_templates_use_works(source, expected):
    """Filters, loop controls, name spaces, marks for training, trimmed blocks."""
    assert render(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content + 'x' }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% if %}",
    ],
)
def test_a_refusal_is_a_bad_request(source):
    """The template's own words, an error in it, and every way out of the sandbox."""
    with pytest.raises(InvalidRequestError) as caught:
        render(source)

    assert caught.value.field == "messages"
    if "raise_exception" in source:
        assert "roles must alternate" in str(caught.value)


def test_rendering_leaves_nothing_behind():
    """The same template renders the same text again."""
    template = ChatTemplate("{% set ns = namespace(n=0) %}{% set ns.n = 1 %}{{ ns.n }}", {})

    assert [template.render(MESSAGES, add_generation_prompt=True) for _ in range(3)] == ["1"] * 3
