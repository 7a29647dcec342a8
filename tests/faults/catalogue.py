"""All seeded faults. Each is data: where, what the text was, what it becomes, what that breaks."""

from typing import Final

from tests.faults import of_calls, of_counts, of_eviction, of_forest, of_keys, of_services
from tests.faults.fault import Fault

FAULTS: Final[tuple[Fault, ...]] = (
    *of_keys.FAULTS,
    *of_forest.FAULTS,
    *of_eviction.FAULTS,
    *of_counts.FAULTS,
    *of_calls.FAULTS,
    *of_services.FAULTS,
)
