"""Code in the README runs as it stands, but for the address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text())


def test_the_readme_shows_the_public_surface():
    """The tour shows both clients, the in-process engine and the tree."""
    shown = "\n".join(BLOCKS)

    assert all(
        f"import {name}\n" in shown for name in ("Client", "AsyncClient", "LLM", "RadixTree")
    )


@pytest.mark.model
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("import ")[-1].split()[0])
def test_python_blocks_run(block, served):
    """Each python block of the README runs to its end; the first one finds tokens in the cache."""
    program = block.replace("127.0.0.1:50051", served)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
    assert "tokens are cached" not in block or re.search(
        r"^[1-9]\d* tokens are cached$", run.stdout, re.MULTILINE
    )
