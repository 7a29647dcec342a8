"""What is committed in radixcache/v1 is what proto/ says, and proto/ keeps its rules."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check_protos(root):
    """Run the check of a checkout, with the tools that stand beside this Python."""
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [root / "scripts/proto", "--check"],
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": str(tools.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_code_is_fresh_and_the_protos_are_clean():
    """``scripts/proto --check``: buf lint, buf format, and no difference after generating anew."""
    done = check_protos(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_finds_a_stale_file(tmp_path):
    """The check itself works."""
    for name in ("proto", "radixcache/v1", "scripts"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / name, tmp_path / name], check=True)
    with (tmp_path / "radixcache/v1/error_pb2.pyi").open("a") as stub:
        stub.write("# changed by hand\n")
    done = check_protos(tmp_path)

    assert done.returncode == 1
    assert "radixcache/v1 is stale" in done.stderr
