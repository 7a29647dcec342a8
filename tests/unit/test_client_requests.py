"""What the clients refuse before anything is sent, and how they say it."""

import inspect
import math

import pytest

from radixcache.client import AsyncClient, Client, _base
from radixcache.client._options import GenerateOptions, PromptOptions, SamplingOptions, check
from radixcache.errors import InvalidRequestError, ServerUnreachableError, TooLongError
from radixcache.types import ChatMessage

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (None, {}),
        ("x", {"token_ids": [1]}),
        ("x", {"messages": []}),
        (None, {"token_ids": [1], "messages": []}),
    ],
)
def test_exactly_one_prompt(prompt, options):
    """None at all and two at once are refused alike."""
    with pytest.raises(InvalidRequestError, match="exactly one of prompt, token_ids, messages"):
        _base.generate_request(prompt, options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": "hot"}, "temperature: got 'hot', allowed: a number"),
        ({"max_tokens": 1.5}, "max_tokens: got 1.5, allowed: a whole number of 32 bits"),
        ({"max_tokens": 2**31}, "max_tokens: got 2147483648"),
        ({"seed": 2**63}, "seed: got 9223372036854775808, allowed: a whole number of 64 bits"),
        ({"n": "2"}, "n: got '2'"),
        ({"ignore_eos": "yes"}, "ignore_eos: got 'yes', allowed: True or False"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias: got {'a': 1.0}"),
        ({"logit_bias": {1: "x"}}, "logit_bias: got {1: 'x'}"),
        ({"logit_bias": [1, 2]}, "logit_bias: got [1, 2]"),
        ({"stop": ["", 3]}, "stop[1]: got 3, allowed: text"),
        ({"stop": 3}, "stop: got 3"),
        ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1]: got 'x'"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids[0]: got 1099511627776"),
        ({"cache": "sometimes"}, "cache: got 'sometimes', allowed: off | read | write"),
        ({"model": 3}, "model: got 3, allowed: text"),
        ({"request_id": b"\xff"}, "request_id: got b'\\xff', allowed: text"),
    ],
)
def test_values_the_wire_cannot_carry(options, says):
    """Refused with the field, the value and what is allowed."""
    with pytest.raises(InvalidRequestError) as caught:
        _base.generate_request("x", options)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token_ids": [1, 2, 2**31]}, "token_ids[2]: got 2147483648"),
        ({"token_ids": [1, 0.5]}, "token_ids[1]: got 0.5"),
        ({"token_ids": [[1], [2]]}, "token_ids[0]: got [1]"),
        ({"token_ids": 5}, "token_ids: got 5"),
        ({"messages": [{"role": "user"}]}, "messages[0]: got {'role': 'user'}"),
        ({"messages": ["hello"]}, "messages[0]: got 'hello'"),
        ({"messages": [ChatMessage("user", 3)]}, "messages[0].content: got 3, allowed: text"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
            "allowed: role and content, nothing else",
        ),
    ],
)
def test_prompts_the_wire_cannot_carry(options, says):
    """The one bad element is named, and a key that would be ignored is refused."""
    with pytest.raises(InvalidRequestError) as caught:
        _base.generate_request(None, options)

    assert says in str(caught.value)


@pytest.mark.parametrize("prompt", [[1, 2], 5, b"\xff", "\ud800"])
def test_a_prompt_is_text(prompt):
    """Token ids given as the prompt are pointed to their keyword; so is broken Unicode refused."""
    with pytest.raises(InvalidRequestError, match=r"^prompt: got"):
        _base.generate_request(prompt, {})


def test_one_stop_string_needs_no_list():
    """A string is one stop string, not its characters."""
    assert list(_base.generate_request("x", {"stop": "END"}).sampling.stop) == ["END"]


def test_an_empty_stop_string_is_sent():
    """The front refuses it by name; dropping it here would make it the default."""
    assert list(_base.generate_request("x", {"stop": ""}).sampling.stop) == [""]
    assert list(_base.generate_request("x", {"stop": []}).sampling.stop) == []


def test_a_request_above_the_message_limit_is_refused_at_once():
    """Case 114: with the limit, instead of the transport's own words."""
    with pytest.raises(TooLongError, match="at most 67,108,864 bytes"):
        _base.generate_request("x" * (_base.MAX_MESSAGE_BYTES + 1), {})


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "1"])
def test_timeouts_are_seconds_above_zero(timeout):
    """For one call and for the client."""
    with pytest.raises(InvalidRequestError, match="timeout"):
        Client(NOWHERE, timeout=timeout)
    with Client(NOWHERE) as client, pytest.raises(InvalidRequestError, match="timeout"):
        client.generate("x", timeout=timeout)


@pytest.mark.parametrize("arguments", [{"address": ""}, {"address": 50051}, {"max_concurrency": 0}])
def test_arguments_of_a_client_are_checked(arguments):
    """Naming the argument."""
    with pytest.raises(InvalidRequestError, match=next(iter(arguments))):
        Client(**arguments)


@pytest.mark.parametrize("call", ["generate", "stream", "chat", "match"])
def test_an_unknown_keyword_is_a_type_error(call):
    """As for any function: a typo never becomes a default."""
    with Client(NOWHERE) as client, pytest.raises(TypeError, match=rf"{call}\(\).*'temprature'"):
        getattr(client, call)("x", temprature=0.0)


@pytest.mark.parametrize("call", ["generate", "chat", "match"])
async def test_an_unknown_keyword_is_a_type_error_when_awaited(call):
    """The same for AsyncClient."""
    async with AsyncClient(NOWHERE) as client:
        with pytest.raises(TypeError, match=rf"{call}\(\).*'temprature'"):
            await getattr(client, call)("x", temprature=0.0)


def test_known_keywords_include_inherited_ones():
    """Each set of options knows its own and its bases' names."""
    check("x", dict.fromkeys(GenerateOptions.__annotations__), GenerateOptions)

    assert {"token_ids", "temperature", "timeout"} <= set(GenerateOptions.__annotations__)
    assert "token_ids" not in SamplingOptions.__annotations__
    assert set(PromptOptions.__annotations__) == {"model", "token_ids", "messages"}


def test_the_clients_have_one_surface():
    """Same public names, same parameters."""

    def surface(kind):
        members = inspect.getmembers(
            kind, lambda m: inspect.isfunction(m) or isinstance(m, property)
        )
        return {
            name: list(inspect.signature(member).parameters)
            if inspect.isfunction(member)
            else "property"
            for name, member in members
            if not name.startswith("_")
        }

    assert surface(Client) == surface(AsyncClient)
    assert {"generate", "stream", "chat", "match", "stats", "flush", "close"} <= set(
        surface(Client)
    )


def test_a_closed_client_says_so():
    """Rather than failing in the transport."""
    client = Client(NOWHERE)
    client.close()
    client.close()

    with pytest.raises(ServerUnreachableError, match="was closed"):
        client.stats()
    with pytest.raises(ServerUnreachableError, match="was closed"):
        client.generate("x")


def test_tokenize_takes_one_input():
    """Text or messages, not both and not neither."""
    for text, messages in (("x", []), (None, None)):
        with pytest.raises(InvalidRequestError, match="exactly one of text, messages"):
            _base.tokenize_request(text, messages=messages, add_special=True, model="")


@pytest.mark.parametrize(
    "address", ["localhost", ":50051", "http://127.0.0.1:50051", "127.0.0.1:99999", "a:", "a:-1", 5]
)
def test_an_address_is_host_and_port(address):
    """Nothing that grpc would read in a way of its own is dialled."""
    with pytest.raises(InvalidRequestError, match=r"address.*(host:port|65,535)"):
        Client(address)


def test_true_is_no_number():
    """A flag in place of a number is a slip, not a 1."""
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        _base.generate_request("x", {"max_tokens": True})
