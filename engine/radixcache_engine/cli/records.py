"""Answers, deltas and stats as JSON objects and as one line of words."""

import json
from dataclasses import asdict
from typing import Any

from radixcache.types import Answer, Delta, Stats, Usage

__all__ = ["answer_record", "delta_record", "describe_usage", "print_json", "stats_record"]


def print_json(record: dict[str, Any]) -> None:
    """Write one JSON object as one line of stdout, at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def answer_record(answer: Answer) -> dict[str, Any]:
    """Turn an answer into a JSON object; ``text`` and ``finish_reason`` of choice 0 on top."""
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        **asdict(answer),
    }


def delta_record(delta: Delta) -> dict[str, Any]:
    """Turn a delta into a JSON object, without the fields that say nothing."""
    record = asdict(delta)
    return {name: value for name, value in record.items() if name == "index" or value}


def stats_record(stats: Stats) -> dict[str, Any]:
    """Turn stats into a JSON object, with the hit rate (null without traffic)."""
    return {**asdict(stats), "hit_rate": stats.hit_rate}


def describe_usage(usage: Usage) -> str:
    """Say in one line what a request cost."""
    return (
        f"prompt {usage.prompt_tokens:,} tokens ({usage.cached_tokens:,} cached), "
        f"completion {usage.completion_tokens:,} · "
        f"queue {usage.queue_s * 1000:.0f} ms, first token {usage.ttft_s * 1000:.0f} ms"
    )
