"""KV blocks: how many there are, who owns each, and (where torch is at hand) what they hold."""
