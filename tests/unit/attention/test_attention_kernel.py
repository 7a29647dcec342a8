"""Building the kernel: once, by anybody at once, and never a failure where it cannot be built."""

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from radixcache.attention import create_backend, kernel
from radixcache.attention.base import AttentionSpec
from radixcache.attention.cpu import CpuBackend
from radixcache.attention.kernel import CpuKernel, KernelUnavailableError, loaded_openmp
from radixcache.errors import InvalidRequestError
from tests.attention_cases import Case, make

QUICK = ("-O0", "-std=c++17", "-fPIC")


@pytest.fixture
def quick(monkeypatch):
    """Build without optimising: these tests are about files."""
    monkeypatch.setattr(kernel, "_FLAGS", QUICK)


@pytest.mark.usefixtures("quick")
def test_it_is_built_once(tmp_path):
    """The second load finds the first one's file and compiles nothing."""
    first = CpuKernel(tmp_path).path
    stamp = first.stat().st_mtime_ns
    second = CpuKernel(tmp_path).path

    assert second == first
    assert second.stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_two_processes_may_build_at_once(tmp_path):
    """Processes that race for an empty cache folder all get a working kernel."""
    code = (
        "import sys; from radixcache.attention import kernel as k; from pathlib "
        "import Path; k._FLAGS = sys.argv[2:]; print(k.CpuKernel(Path(sys.argv[1])).path.name)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), *QUICK],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    names = {process.communicate()[0].strip() for process in started}

    assert [process.returncode for process in started] == [0, 0]
    assert len(names) == 1
    assert {path.name for path in tmp_path.iterdir()} == names


def test_one_openmp_runtime_is_loaded():
    """The kernel shares torch's thread pool: two runtimes would fight for the cores."""
    torch.ones(1)
    before = loaded_openmp()
    CpuKernel()

    assert len(before) == 1
    assert loaded_openmp() == before


def test_without_a_compiler_torch_takes_over(monkeypatch, tmp_path):
    """No compiler: one warning that says why, and the same numbers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler") as caught:
        backend = create_backend("cpu")
    problem = make(Case())
    wanted = problem.run(create_backend("reference"))

    assert len(caught) == 1
    assert not backend.is_compiled
    assert torch.allclose(problem.run(backend), wanted, atol=3e-5)


def test_a_compiler_that_fails_is_no_failure(monkeypatch, tmp_path):
    """A compiler that cannot compile ends in the fall-back, with its first line in the warning."""
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\ncase "$*" in *--version*) echo 1;; *) echo no >&2; exit 1;; esac')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(RuntimeWarning, match="failed: no"):
        backend = create_backend("cpu")

    assert not backend.is_compiled


@pytest.mark.usefixtures("quick")
def test_a_cache_folder_that_cannot_be_made_is_no_failure(tmp_path):
    """Where the cache folder cannot be written, a private folder takes its place."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    built = CpuKernel(blocked / "kernels").path

    assert built.exists()
    assert built.parent.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("quick")
def test_a_file_that_is_no_library_is_named(tmp_path):
    """A broken file in the cache folder is an error of its own, not a crash."""
    good = CpuKernel(tmp_path / "good").path
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / good.name).write_bytes(b"nothing")
    with pytest.raises(KernelUnavailableError, match="cannot be loaded"):
        CpuKernel(tmp_path / "bad")


@pytest.mark.usefixtures("quick")
def test_another_source_is_another_file(tmp_path, monkeypatch):
    """Whatever shapes the result is part of its name, so an old build is never used."""
    first = CpuKernel(tmp_path).path
    monkeypatch.setattr(kernel, "_FLAGS", (*QUICK, "-DX"))

    assert CpuKernel(tmp_path).path != first


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("flashinfer", "cpu", "not built yet"),
        ("fast", "cpu", r"auto \| cpu \| reference"),
        ("cpu", "cuda:0", "reference on cuda:0"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(name, device, message):
    """A backend that is not there is refused with what is."""
    with pytest.raises(InvalidRequestError, match=message):
        create_backend(name, device=device)


def test_auto_is_the_reference_on_another_device():
    """Where the CPU backend cannot run, "auto" is the reference."""
    assert create_backend("auto", device="cuda").name == "reference"


def test_spec_wants_whole_groups():
    """Query heads are a multiple of KV heads."""
    assert AttentionSpec(num_qo_heads=9, num_kv_heads=3, head_dim=64, scale=1.0).group == 3
    with pytest.raises(InvalidRequestError, match="multiple of 2 KV heads"):
        AttentionSpec(num_qo_heads=9, num_kv_heads=2, head_dim=64, scale=1.0)


def test_float16_goes_through_torch():
    """The kernel knows float32 and bfloat16; other dtypes are left to torch."""
    problem = make(Case(dtype="float16"))

    assert not CpuKernel.takes(problem.q, problem.pool)
    assert not problem.run(CpuBackend(CpuKernel())).isnan().any()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64 processors")
@pytest.mark.parametrize("flags", [("-mavx2", "-mfma"), ("-msse2",)], ids=" ".join)
def test_processors_with_narrower_vectors(flags, tmp_path, monkeypatch):
    """Built for processors without AVX-512 the kernel gives the same numbers."""
    monkeypatch.setattr(kernel, "_FLAGS", ("-O1", "-std=c++17", "-fPIC", *flags))
    backend = CpuBackend(CpuKernel(tmp_path))
    for case in (Case(), Case(head_dim=20, soft_cap=4.0), Case(dtype="bfloat16", group=7)):
        problem = make(case)
        wanted = problem.run(create_backend("reference"))

        assert torch.allclose(problem.run(backend).float(), wanted.float(), atol=2e-2, rtol=1e-2)


def test_without_openmp_it_runs_on_one_thread(tmp_path, monkeypatch):
    """Where torch has no OpenMP runtime to share, the kernel still works."""
    monkeypatch.setattr(kernel, "_FLAGS", QUICK)
    monkeypatch.setattr(kernel, "loaded_openmp", list)
    backend = CpuBackend(CpuKernel(tmp_path))
    problem = make(Case(rows=((600, 1), (3, 9))))

    assert torch.allclose(problem.run(backend), problem.run(create_backend("reference")), atol=3e-5)


def test_queries_and_pool_may_differ_in_dtype():
    """float32 queries over a bfloat16 pool are as good as the reference's."""
    problem = make(Case(dtype="bfloat16"))
    problem = replace(problem, q=problem.q.float())
    wanted = problem.run(create_backend("reference"))

    assert torch.allclose(problem.run(create_backend("cpu")), wanted, atol=3e-5)
