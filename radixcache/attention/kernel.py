"""Builds the CPU kernel on first use and calls it.

The source ships with the package and holds no torch header, so the compiler needs seconds. The
result lies in the user's cache folder under a name made of everything that shapes it; two
processes that build at once both succeed, and the last one's equal file stays.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import torch

from radixcache.attention.plan import AttentionPlan
from radixcache.errors import ModelLoadError
from radixcache.kv.pool import KVPool

__all__ = ["CpuKernel", "KernelUnavailableError", "loaded_openmp"]

_SOURCES = ("paged_attention.cpp", "tiles.h", "simd.h")  # the first is compiled, the rest included
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-march=native")
_COMPILERS = ("g++", "c++", "clang++")
_BUILD_S = 120.0
_OPENMP_NAMES = ("libgomp", "libiomp5", "libomp")


class KernelUnavailableError(Exception):
    """The kernel cannot be built or loaded here; the message says why."""


class _Args(ctypes.Structure):
    """The argument struct of ``paged_attention.cpp``, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("qo_indptr", "kv_indptr", "kv_indices", "seq_lens")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "q_stride_token",
                "q_stride_head",
                "out_stride_token",
                "out_stride_head",
                "kv_stride_block",
                "kv_stride_token",
                "kv_stride_head",
            )
        ),
        *(
            (name, ctypes.c_int32)
            for name in (
                "num_rows",
                "num_qo_heads",
                "num_kv_heads",
                "head_dim",
                "block_size",
                "window",
                "max_qo_len",
                "q_is_bf16",
                "kv_is_bf16",
                "num_threads",
            )
        ),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


class CpuKernel:
    """The compiled kernel. Calls release the GIL.

    Args:
        cache_dir: where the built library is kept; None: the user's cache folder.

    Raises:
        KernelUnavailableError: no compiler works here, or its result cannot be loaded.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.path = _build(cache_dir)
        try:
            library = ctypes.CDLL(str(self.path))
            size = library.radixcache_args_size
            size.restype = ctypes.c_int64
            self._call = library.radixcache_paged_attention
        except (OSError, AttributeError) as error:
            raise KernelUnavailableError(f"{self.path} cannot be loaded: {error}") from error
        self._call.argtypes = (ctypes.c_void_p,)
        self._call.restype = ctypes.c_int32
        if size() != ctypes.sizeof(_Args):
            raise KernelUnavailableError(f"{self.path} has another argument struct")

    @staticmethod
    def takes(q: torch.Tensor, pool: KVPool) -> bool:
        """Say whether the kernel knows these dtypes (float32 and bfloat16, on the CPU)."""
        known = (torch.float32, torch.bfloat16)
        return q.device.type == "cpu" and q.dtype in known and pool.dtype in known

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool,
        out: torch.Tensor,
        *,
        scale: float,
        window: int,
        soft_cap: float,
        max_qo_len: int,
    ) -> None:
        """Attend for the rows of at most ``max_qo_len`` queries; leave the others untouched.

        ``q`` and ``out`` are ``[T, num_qo_heads, head_dim]`` with a contiguous last dimension.

        Raises:
            ModelLoadError: not enough memory for the partial results of split rows.
        """
        args = _Args(
            q_is_bf16=q.dtype == torch.bfloat16,
            kv_is_bf16=pool.dtype == torch.bfloat16,
            num_threads=torch.get_num_threads(),
            max_qo_len=max_qo_len,
            window=window,
            scale=scale,
            soft_cap=soft_cap,
        )
        _set_queries(args, q, out)
        _set_plan(args, plan)
        _set_pool(args, layer, pool)
        if self._call(ctypes.byref(args)) != 0:
            raise ModelLoadError("attention: out of memory for partial results")


def _set_queries(args: _Args, q: torch.Tensor, out: torch.Tensor) -> None:
    args.q, args.out = q.data_ptr(), out.data_ptr()
    args.q_stride_token, args.q_stride_head = q.stride()[:2]
    args.out_stride_token, args.out_stride_head = out.stride()[:2]
    args.num_qo_heads, args.head_dim = q.shape[1:]


def _set_plan(args: _Args, plan: AttentionPlan) -> None:
    args.qo_indptr, args.kv_indptr = plan.qo_indptr.data_ptr(), plan.kv_indptr.data_ptr()
    args.kv_indices, args.seq_lens = plan.kv_indices.data_ptr(), plan.seq_lens.data_ptr()
    args.num_rows, args.block_size = plan.num_rows, plan.block_size


def _set_pool(args: _Args, layer: int, pool: KVPool) -> None:
    planes = pool.planes(layer)
    args.k, args.v = planes.k.data_ptr(), planes.v.data_ptr()
    block, first, second = planes.k.stride()[:3]
    nhd = pool.layout.order == "NHD"
    args.kv_stride_block = block
    args.kv_stride_token, args.kv_stride_head = (first, second) if nhd else (second, first)
    args.num_kv_heads = pool.layout.num_kv_heads


def loaded_openmp() -> list[Path]:
    """List the OpenMP runtimes this process has loaded (empty where /proc is missing)."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: dict[Path, None] = {}
    for line in maps.splitlines():
        path = line.partition("/")
        name = path[2].rpartition("/")[2]
        if path[1] and name.startswith(_OPENMP_NAMES) and ".so" in name:
            found[Path("/" + path[2])] = None
    return list(found)


def _build(cache_dir: Path | None) -> Path:
    folder = files("radixcache.attention").joinpath("csrc")
    sources = {name: folder.joinpath(name).read_bytes() for name in _SOURCES}
    compiler = _find_compiler()
    openmp = _torch_openmp()
    key = hashlib.sha256()
    for part in (
        *sources.values(),
        _compiler_version(compiler),
        " ".join(_FLAGS),
        _cpu_flags(),
        openmp,
    ):
        text = part if isinstance(part, bytes) else str(part).encode()
        key.update(len(text).to_bytes(8, "little") + text)
    target = _cache_folder(cache_dir) / f"paged_attention-{key.hexdigest()[:24]}.so"
    if not target.exists():
        _compile(compiler, sources, openmp, target)
    return target


def _torch_openmp() -> Path | None:
    # Linking the very file torch loaded keeps one OpenMP runtime, and one thread pool, a process.
    home = Path(torch.__file__).parent
    found = sorted(loaded_openmp(), key=lambda path: not path.is_relative_to(home))
    return found[0] if found else None


def _find_compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise KernelUnavailableError(f"no C++ compiler ({wanted or ', '.join(_COMPILERS)}) on PATH")


def _compiler_version(compiler: str) -> bytes:
    return compiler.encode() + b"\n" + _run([compiler, "--version"])


def _cpu_flags() -> str:
    # -march=native is another compilation on another processor, and home folders get shared.
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.partition(":")[2].split()))
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"


def _cache_folder(cache_dir: Path | None) -> Path:
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        cache_dir = Path(base) / "radixcache" / "kernels"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(cache_dir, os.W_OK):
            return cache_dir
    except OSError:
        pass
    # A private folder, never a shared one: what lies in it gets loaded into this process.
    return Path(tempfile.mkdtemp(prefix="radixcache-"))


def _compile(compiler: str, sources: dict[str, bytes], openmp: Path | None, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        for name, content in sources.items():
            (Path(folder) / name).write_bytes(content)
        code = Path(folder) / _SOURCES[0]
        module, library = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
        threads = ["-fopenmp"] if openmp else []
        _run([compiler, *_FLAGS, *threads, "-c", str(code), "-o", str(module)])
        # -fopenmp is left out here: it would add the compiler's own runtime beside torch's.
        linked = [str(openmp)] if openmp else []
        _run([compiler, "-shared", str(module), *linked, "-o", str(library)])
        library.replace(target)


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler found on PATH, with our own arguments
            command, check=False, capture_output=True, timeout=_BUILD_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailableError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise KernelUnavailableError(f"{command[0]} failed: {reason[0]}")
    return done.stdout


if sys.maxsize < 2**32:  # pragma: no cover - the struct above is drawn for 64-bit pointers
    raise ImportError("radixcache.attention needs a 64-bit Python")
