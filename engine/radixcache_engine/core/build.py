"""Put an engine together: model, cache, sampler, scheduler, step loop."""

import time
from collections.abc import Sequence

from radixcache.cache import PrefixCache
from radixcache.types import Clock, ModelInfo
from radixcache_engine.config import EngineConfig
from radixcache_engine.core.engine import Engine
from radixcache_engine.core.loop import StepLoop
from radixcache_engine.metrics.counters import Counters
from radixcache_engine.models.progress import SILENT, Progress
from radixcache_engine.models.registry import ModelFolder
from radixcache_engine.runner.runner import Runner
from radixcache_engine.sampling.sampler import Sampler
from radixcache_engine.sampling.stop import StopMatcher
from radixcache_engine.scheduler.scheduler import Scheduler
from radixcache_engine.types import Worker

__all__ = ["build_engine", "engine_around", "loop_around"]


def build_engine(
    config: EngineConfig,
    folder: ModelFolder,
    token_bytes: Sequence[bytes],
    progress: Progress = SILENT,
) -> Engine:
    """Load a model and start an engine on it.

    Args:
        config: every setting.
        folder: where the model's files are.
        token_bytes: for each token id the bytes of its text (for stop strings).
        progress: told of each slow part.

    Raises:
        ModelRefusedError: the model cannot be run exactly; says why.
        ModelLoadError: broken files, or not enough memory.
    """
    with progress.task(f"Loading {folder.name}", None):
        runner = Runner.load(config, folder.path, folder.name)
    cache = PrefixCache(
        runner.num_blocks,
        block_size=config.block_size,
        store=runner.pool,
        policy=config.eviction_policy,
    )
    return engine_around(
        config, runner, cache, runner.model_info, token_bytes, kv_key=runner.kv_key
    )


def engine_around(
    config: EngineConfig,
    worker: Worker,
    cache: PrefixCache,
    model: ModelInfo,
    token_bytes: Sequence[bytes],
    *,
    kv_key: str,
    clock: Clock = time.monotonic,
) -> Engine:
    """Start an engine around a worker that is already there."""
    loop = loop_around(config, worker, cache, model, token_bytes, kv_key=kv_key, clock=clock)
    return Engine(loop, config, model, kv_key=kv_key, clock=clock)


def loop_around(
    config: EngineConfig,
    worker: Worker,
    cache: PrefixCache,
    model: ModelInfo,
    token_bytes: Sequence[bytes],
    *,
    kv_key: str,
    clock: Clock = time.monotonic,
) -> StepLoop:
    """Build the step loop alone, for a caller that steps it itself."""
    end_token_ids = frozenset(model.eos_token_ids)
    counters = Counters()
    scheduler = Scheduler(
        config,
        cache,
        kv_key=kv_key,
        make_stop_matcher=lambda request: StopMatcher(request.sampling.stop, token_bytes),
        end_token_ids=end_token_ids,
        counters=counters,
    )
    sampler = Sampler(model.vocab_size, end_token_ids)
    return StepLoop(
        scheduler, worker, sampler, cache, counters, clock=clock, check=config.check_every_step
    )
