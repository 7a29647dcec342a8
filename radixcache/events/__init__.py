"""What changes in a prefix cache, told in order, so that others can keep an exact copy.

Plain integers and bytes; knows neither the tree nor the pool. :class:`EventLog` watches a tree,
:class:`Mirror` is the other end.
"""

from radixcache.events.log import EventLog, Replayable, Subscription
from radixcache.events.mirror import Mirror, MirrorBlock
from radixcache.events.values import BlocksRemoved, BlocksStored, Cleared, Event, Snapshot

__all__ = [
    "BlocksRemoved",
    "BlocksStored",
    "Cleared",
    "Event",
    "EventLog",
    "Mirror",
    "MirrorBlock",
    "Replayable",
    "Snapshot",
    "Subscription",
]
