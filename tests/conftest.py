"""Hypothesis profiles shared by all tests."""

import os

from hypothesis import HealthCheck, settings

# Other work on the machine must not fail a test: no deadlines, no health check of speed.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, stateful_step_count=40, **_CALM)
settings.register_profile("thorough", max_examples=1000, stateful_step_count=100, **_CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
