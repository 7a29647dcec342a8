"""Pool sizing: what was asked for, or a stated share of what is free."""

import pytest

from radixcache.errors import ModelLoadError, ModelRefusedError
from radixcache.kv.layout import KVLayout
from radixcache_engine.runner.sizing import AUTO_MAX_TOKENS, AUTO_SHARE, pool_blocks
from tests.runner_cases import load
from tests.tiny_models import save_tiny

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=16)


def test_asked_for_is_rounded_down_to_blocks():
    """1,000 tokens are 62 blocks of 16, beside the padding block."""
    assert pool_blocks(LAYOUT, 1000, None) == 63
    assert pool_blocks(LAYOUT, 16, 10**9) == 2


def test_by_itself_it_takes_a_share():
    """Without kv_tokens the pool takes its share of the free memory, up to a limit."""
    free = 100 * 2**20
    tokens = int(free * AUTO_SHARE) // LAYOUT.bytes_per_token

    assert pool_blocks(LAYOUT, None, free) == tokens // 16 + 1
    assert pool_blocks(LAYOUT, None, 10**15) == AUTO_MAX_TOKENS // 16 + 1
    assert pool_blocks(LAYOUT, None, None) == AUTO_MAX_TOKENS // 16 + 1


def test_more_than_is_free_is_refused_with_what_fits():
    """A pool that does not fit says how much would."""
    with pytest.raises(ModelLoadError, match=r"kv_tokens: 1,000,000 tokens need .*; at most 2,032"):
        pool_blocks(LAYOUT, 1_000_000, 2048 * LAYOUT.bytes_per_token)


@pytest.mark.parametrize(("asked", "free"), [(15, None), (None, 100)])
def test_less_than_a_block_is_refused(asked, free):
    """A pool without room for one block is refused."""
    with pytest.raises(ModelLoadError, match="kv_tokens"):
        pool_blocks(LAYOUT, asked, free)


def test_a_pool_that_cannot_fit_ends_loading_with_one_line(tmp_path):
    """Runner.load names kv_tokens when the pool is larger than the machine."""
    with pytest.raises(ModelLoadError, match="kv_tokens: 17,179,869,184"):
        load(save_tiny(tmp_path), kv_tokens=1 << 34)


def test_refused_models_never_load(tmp_path):
    """Case 28: a length-dependent rope is refused by Runner.load itself."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    folder = save_tiny(tmp_path, rope_parameters=rope)
    with pytest.raises(ModelRefusedError, match="rope type dynamic"):
        load(folder)


def test_the_probe_can_be_left_out(tmp_path):
    """probe=False loads without the comparison; the trace still stands guard."""
    runner = load(save_tiny(tmp_path / "a"), probe=False)

    assert runner.model_info.context_len == 256
    with pytest.raises(ModelRefusedError, match="a mask of its own"):
        load(save_tiny(tmp_path / "b", "doge"), probe=False)
