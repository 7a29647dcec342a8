"""Stats and the tree, drawn for people."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from radixcache.types import Stats, TreeNodeView, TreeView

__all__ = ["percent", "stats_table", "tree_picture"]

_TEXT_LEN = 60


def percent(share: float | None) -> str:
    """Write a share as a percentage; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f} %"


def stats_table(stats: Stats) -> Table:
    """Draw the counters that answer "is the cache working, and is there room"."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = (
        ("prompt tokens", stats.prompt_tokens, "of admitted requests"),
        ("  cached", stats.cached_tokens, f"hit rate {percent(stats.hit_rate)}"),
        ("  computed", stats.computed_tokens, f"{stats.recomputed_tokens:,} more after preemption"),
        ("generated tokens", stats.generated_tokens, ""),
        ("requests finished", stats.requests_finished, f"of {stats.requests_admitted:,} admitted"),
        ("  aborted", stats.requests_aborted, ""),
        ("  failed", stats.requests_failed, ""),
        ("requests running", stats.requests_running, f"{stats.preemptions:,} preemptions"),
        ("  waiting", stats.requests_waiting, f"{stats.requests_blocked:,} blocked on a leader"),
        ("blocks", stats.blocks_total, f"of {stats.block_size} tokens"),
        ("  free", stats.blocks_free, ""),
        ("  evictable", stats.blocks_evictable, f"{stats.evicted_blocks:,} evicted so far"),
        ("  locked", stats.blocks_locked, ""),
        ("  leased", stats.blocks_leased, "by running requests"),
        ("tree nodes", stats.tree_nodes, ""),
        ("steps", stats.steps, f"{stats.step_s:.1f} s of {stats.uptime_s:.1f} s up"),
    )
    for name, value, remark in rows:
        table.add_row(name, f"{value:,}", remark)
    return table


def tree_picture(view: TreeView) -> RenderableType:
    """Draw the tree; nodes whose parent is not in the picture stand at the top."""
    root = Tree(f"{view.total_tokens:,} cached tokens in {view.total_nodes:,} nodes")
    drawn = {0: root}
    for node in view.nodes:
        drawn[node.node_id] = drawn.get(node.parent_id, root).add(_node_label(node))
    hidden = view.total_nodes - len(view.nodes)
    if hidden <= 0:
        return root
    return Group(root, Text(f"{hidden:,} more nodes; --max-nodes shows more", style="dim"))


def _node_label(node: TreeNodeView) -> str:
    """One node in a line: its size, use, and how its text begins."""
    text = node.text.replace("\n", "⏎") or " ".join(map(str, node.token_ids))
    if len(text) > _TEXT_LEN:
        text = text[: _TEXT_LEN - 1] + "…"
    facts = f"[bold]{node.num_tokens:,}[/] tokens, {node.num_hits:,} hits"
    if node.num_locks:
        facts += f", {node.num_locks} locks"
    if node.scope:
        facts += f", scope {escape(node.scope)}"
    return f"{facts}  [dim]{escape(text)}[/]"
