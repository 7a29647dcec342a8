"""Renders chat messages with a model's own Jinja template, as transformers does.

The template comes with the model, so it runs in jinja2's immutable sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from radixcache.errors import InvalidRequestError
from radixcache.types import ChatMessage

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A compiled chat template. Safe to use from many threads.

    Args:
        source: the Jinja text.
        special_tokens: names the template may use (``bos_token``, ``eos_token``, ...).
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """Return the prompt text.

        Message contents go in as they are. Like transformers, this does not escape text that
        spells a control token (``<|im_end|>``): it becomes that token. A caller that puts
        untrusted text into a message must remove such strings first.

        Raises:
            InvalidRequestError: the template refuses the messages (roles out of order, say).
        """
        from jinja2 import TemplateError  # noqa: PLC0415 - only chat requests pay for it

        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._template.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            roles = [message.role for message in messages]
            raise InvalidRequestError(
                "messages", roles, f"what the model's chat template accepts: {error}"
            ) from error
        return text

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateError  # noqa: PLC0415 - only chat requests pay for it
        from jinja2.ext import loopcontrols  # noqa: PLC0415 - as above
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

        def raise_exception(message: str) -> None:
            """Let the template refuse the messages."""
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _generation_extension()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self._source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no chat format wants.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _generation_extension() -> Any:
    from jinja2 import nodes  # noqa: PLC0415 - only chat requests pay for it
    from jinja2.ext import Extension  # noqa: PLC0415 - as above
    from jinja2.parser import Parser  # noqa: PLC0415 - as above

    class Generation(Extension):
        """Templates mark the assistant's part for training; here the mark changes nothing."""

        tags = {"generation"}  # noqa: RUF012 - the type jinja2 declares

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            """Read the block as if it were not marked."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
