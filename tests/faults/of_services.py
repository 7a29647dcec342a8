"""Faults in what stands on the tree: pins, events, explanations, and the two learning policies."""

from functools import partial

from tests.faults.fault import Fault

_pins = partial(Fault, path="radixcache/pins.py")
_log = partial(Fault, path="radixcache/events/log.py")
_mirror = partial(Fault, path="radixcache/events/mirror.py")
_explain = partial(Fault, path="radixcache/tree/explain.py")
_s3fifo = partial(Fault, path="radixcache/tree/s3fifo.py")
_adaptive = partial(Fault, path="radixcache/tree/adaptive.py")
_rival = partial(Fault, path="radixcache/tree/rival.py")
_ages = partial(Fault, path="radixcache/tree/ages.py")

_PINS = (
    _pins(
        name="pins-never-expire",
        old="        while due and due[0][0] <= now:\n",
        new="        while due and due[0][0] < 0.0:\n",
        breaks="a pin guards its prefix for ever",
    ),
    _pins(
        name="renewed-pins-expire",
        old="            if held.expires_s > now:\n",
        new="            if held.expires_s < 0.0:\n",
        breaks="a pin that was hit ends when it would have ended without",
    ),
    _pins(
        name="hits-do-not-renew",
        old="            held.expires_s = now + held.ttl_s\n",
        new="            pass\n",
        breaks="a pin in use expires",
    ),
    _pins(
        name="ended-pins-keep-their-lock",
        old="        self._strike(held)\n        self._unlock(held.lock)\n",
        new="        self._strike(held)\n",
        breaks="what an ended pin guarded can never be evicted",
    ),
    _pins(
        name="longer-pins-keep-the-shorter-lock",
        old="        self._unlock(shorter)\n",
        new="",
        breaks="a pin that has grown leaves a lock behind",
    ),
    _pins(
        name="pins-survive-a-flush",
        old="if not held.lock.findable]",
        new="if not held.lock.live]",
        breaks="a flushed prefix stays pinned, unfindable",
    ),
    _pins(
        name="pin-quota-of-nobody",
        old="        over = max(self._used[space] + missing - quota, ",
        new="        over = max(self._used[space] - quota, ",
        breaks="a namespace pins more than its quota",
    ),
    _pins(
        name="equal-priorities-displace",
        old="held.priority < rank and held is not kept",
        new="held.priority <= rank and held is not kept",
        breaks="a pin ends for another that matters no more",
    ),
    _pins(
        name="others-pins-displaced",
        old="if held.namespace == space and held.priority < rank",
        new="if held.priority < rank",
        breaks="one namespace's pin ends for another's",
    ),
    _pins(
        name="a-prompt-of-its-own-length-does-not-renew",
        old="            if match.num_tokens == len(tokens):\n",
        new="            if match is None:\n",
        breaks="a request that is exactly the pinned prefix does not keep it",
    ),
    _pins(
        name="tokens-of-ended-pins-stay",
        old="        self.num_tokens -= num_tokens\n",
        new="",
        breaks="ended pins count against what all may guard",
    ),
)

_EVENTS = (
    _log(
        name="events-unbounded",
        old="len(self._events) > self._max_events or ",
        new="",
        breaks="the log keeps any number of events",
    ),
    _log(
        name="events-off-by-one",
        old="        events = list(islice(reversed(self._events), count))\n",
        new="        events = list(islice(reversed(self._events), count + 1))\n",
        breaks="a reader gets the event that it has already",
    ),
    _log(
        name="lost-events-unsaid",
        old="        if not 0 <= count <= len(self._events):\n",
        new="        if not 0 <= count:\n",
        breaks="a reader that was too slow goes on with a wrong copy",
    ),
    _log(
        name="readers-woken-once",
        old="            self._log._waiting[self] = None\n",
        new="            pass\n",
        breaks="nobody learns that there is more to read",
    ),
    _mirror(
        name="mirrors-skip-gaps",
        old="        if event.seq > self._seq + 1:\n",
        new="        if event.seq > self._seq + 2:\n",
        breaks="a mirror goes on although an event is missing",
    ),
    _mirror(
        name="mirrors-repeat",
        old="        if event.seq <= self._seq:\n",
        new="        if event.seq < self._seq:\n",
        breaks="a mirror takes over an event twice",
    ),
    _mirror(
        name="mirror-chains-from-the-parent",
        old="            above = block_id\n        if len(new)",
        new="        if len(new)",
        breaks="in a mirror all blocks of a run follow the same one",
    ),
)

_EXPLANATIONS = (
    _explain(
        name="explained-by-others",
        old="if child.scope in (PUBLIC, space.scope))",
        new="if child is not None)",
        breaks="an explanation shows a tenant what another has cached",
    ),
    _explain(
        name="explained-by-the-first-loss",
        old="    time_s, stop, cause = max(found)\n",
        new="    time_s, stop, cause = min(found)\n",
        breaks="of several evictions an old one is told, not the last",
    ),
    _explain(
        name="explained-without-the-tail",
        old="prompt_tokens=len(view) // ID_BYTES,",
        new="prompt_tokens=len(blocks) // ID_BYTES,",
        breaks="tokens that fill no block are not explained",
    ),
    _explain(
        name="explained-by-any-branch",
        old="        if rank > best:\n",
        new="        if nearest is None:\n",
        breaks="the branch that is shown is not the one that agrees longest",
    ),
    _explain(
        name="elsewhere-is-here",
        old="if scope != space.scope]",
        new="]",
        breaks="a namespace's own path is told as another's",
    ),
)

_LEARNING = (
    _s3fifo(
        name="trial-without-end",
        old="            if credit <= 0:\n",
        new="            if credit <= 9:\n",
        breaks="s3fifo evicts from the trial queue what was asked for again",
    ),
    _s3fifo(
        name="trial-share-of-nothing",
        old="not self._main or self._small_blocks > self._small_share * total",
        new="not self._main",
        breaks="new leaves push out the main queue first",
    ),
    _adaptive(
        name="adaptive-without-safety",
        old="trusted = self._rival.loss <= self._max_loss * self._rival.traffic",
        new="trusted = True",
        breaks="nothing limits what learning may cost against lru",
    ),
    _adaptive(
        name="adaptive-never-learns",
        old="self._ages = self._book.limits(self._num_blocks, uniform=not trusted)",
        new="self._ages = self._book.limits(self._num_blocks, uniform=True)",
        breaks="the adaptive policy is lru",
    ),
    _adaptive(
        name="adaptive-forgets-trims",
        old="        self._take(entry, num_blocks)\n        self._rival.evicted(",
        new="        self._rival.evicted(",
        breaks="trimmed blocks count as held",
    ),
    _rival(
        name="rival-never-misses",
        old="            self.loss += num_blocks\n",
        new="            pass\n",
        breaks="what lru would have had is not held against the adaptive policy",
    ),
    _rival(
        name="rival-stands-still",
        old="            self.horizon += 1\n",
        new="            self.horizon += 1\n            break\n",
        breaks="lru is thought to hold more than fits",
    ),
)

FAULTS = (*_PINS, *_EVENTS, *_EXPLANATIONS, *_LEARNING)
