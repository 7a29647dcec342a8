"""The command line: what it accepts, what it refuses, and what it loads."""

import json
import socket
import subprocess
import sys
from dataclasses import fields

import pytest

from radixcache_engine.cli.arguments import SAMPLING_FLAGS, build_parser
from radixcache_engine.cli.main import main
from radixcache_engine.config import EngineConfig

COMMANDS = ("serve", "generate", "chat", "stats", "tree", "match", "flush", "fetch", "version")
HEAVY = ("torch", "transformers", "tokenizers", "grpc", "google.protobuf", "numpy", "rich")


def test_help_names_every_command(capsys):
    """``radixcache --help`` lists what there is."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n    {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command, capsys):
    """Each command explains itself and offers --json."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["serve", "--block-size=0"]]
)
def test_help_and_refusals_load_nothing_heavy(arguments):
    """Help and a refused flag do not pay for torch, transformers, grpc or rich."""
    heavy = HEAVY if "--help" in arguments else tuple(m for m in HEAVY if m != "rich")
    program = (
        "import sys\n"
        "from radixcache_engine.cli.main import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)\n"
    )

    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)

    assert run.stderr.splitlines()[-1] == "[]"


def test_serve_flags_mirror_the_engine_configuration():
    """Each setting has a flag, and no flag given means the configuration's own defaults."""
    given = vars(build_parser().parse_args(["serve"]))

    assert EngineConfig(**{f.name: given[f.name] for f in fields(EngineConfig)}) == EngineConfig()


def test_serve_flags_reach_the_configuration():
    """What a flag says is what the configuration gets."""
    line = "serve --block-size 1 --kv-tokens 640 --max-wait-s 0.5 --no-probe --dtype float32"
    given = vars(build_parser().parse_args(line.split()))

    assert given["block_size"] == 1
    assert given["kv_tokens"] == 640
    assert given["max_wait_s"] == 0.5
    assert given["probe"] is False
    assert given["dtype"] == "float32"


def test_sampling_flags_not_given_are_absent():
    """A flag that was not given is not sent, so that the server's default holds."""
    given = vars(build_parser().parse_args(["generate", "x", "--temperature", "0", "--stop", "a"]))

    assert {name: given[name] for name in SAMPLING_FLAGS if name in given} == {
        "temperature": 0.0,
        "stop": ["a"],
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", "COMMAND"),
        ("dance", "dance"),
        ("generate", "prompt"),
        ("stats --foo", "--foo"),
        ("serve --grpc 1", "--grpc"),
        ("serve --block-size two", "--block-size"),
        ("generate x --temperature warm", "--temperature"),
    ],
)
def test_wrong_command_lines_get_one_line_and_exit_2(line, named, capsys):
    """A wrong command line is refused in one line that names what is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())

    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert named in shown.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--block-size 0", "block_size: got 0, allowed: a whole number from 1 to 256"),
        ("--block-size 257", "block_size"),
        ("--kv-tokens 3", "kv_tokens"),
        ("--threads 0", "threads"),
        ("--dtype int4", "dtype"),
        ("--attention-backend magic", "attention_backend"),
        ("--max-wait-s nan", "max_wait_s"),
        ("--drain-s -1", "drain_s"),
        ("--drain-s inf", "drain_s"),
        ("--grpc-port 70000", "grpc_port"),
        ("--grpc-port -1", "grpc_port"),
        ("--http-port 8000", "HTTP door is not built"),
    ],
)
def test_serve_refuses_what_is_out_of_range(flags, named, capsys):
    """A setting out of its range ends with 2 and one line: what was got, what is allowed."""
    code = main(["serve", *flags.split()])

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert named in shown.err


def test_serve_refuses_a_taken_port_before_loading(capsys):
    """A port that somebody listens on is one clear line, told before the model loads."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["serve", "--grpc-port", str(port)])

    shown = capsys.readouterr()
    assert code == 1
    assert shown.err.count("\n") == 1
    assert f"127.0.0.1:{port}" in shown.err
    assert "in use" in shown.err


def test_serve_refuses_an_address_of_another_machine(capsys):
    """A host this machine does not have is one clear line."""
    code = main(["serve", "--host", "192.0.2.1", "--allow-remote"])

    shown = capsys.readouterr().err
    assert code == 1
    assert shown.count("\n") == 1
    assert "192.0.2.1" in shown


def test_serve_stays_on_loopback_unless_told_otherwise(capsys):
    """Without authentication, an address that other machines reach has to be asked for by name."""
    code = main(["serve", "--host", "0.0.0.0"])

    assert code == 2
    assert "allow_remote" in capsys.readouterr().err


def test_version_is_json_or_lines(capsys):
    """``version`` tells the same in both forms."""
    assert main(["version", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert main(["version"]) == 0
    lines = capsys.readouterr().out

    assert record["python"].startswith("3.")
    assert all(
        name in lines and (value or "not installed") in lines for name, value in record.items()
    )
