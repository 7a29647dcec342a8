"""A step: which rows run, and which tokens are drawn after it."""

from dataclasses import dataclass, field

from radixcache_engine.scheduler.sequence import Request, Sequence
from radixcache_engine.types import Batch, BatchRow, SampleRow

__all__ = ["Draw", "ScheduledRow", "Step"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw after the step, for sample ``index`` of the row's request."""

    sequence: Sequence
    index: int


@dataclass(slots=True)
class ScheduledRow:
    """A sequence's part of a step: ``num_tokens`` of its pending tokens."""

    sequence: Sequence
    num_tokens: int
    batch_row: BatchRow

    def draws(self) -> list[Draw]:
        """Return the draws of its logits row; all n samples share the prompt's last row."""
        request = self.sequence.request
        n = request.request.sampling.n
        if len(request.sequences) == n:
            return [Draw(self.sequence, self.sequence.index)]
        return [Draw(self.sequence, index) for index in range(n)]


@dataclass(slots=True)
class Step:
    """What one step runs and what it lets others know."""

    number: int
    rows: list[ScheduledRow] = field(default_factory=list)
    num_tokens: int = 0
    num_preempted: int = 0
    failed: list[Request] = field(default_factory=list)  # whose rows broke the model

    @property
    def batch(self) -> Batch:
        """The step as the worker receives it."""
        return Batch([row.batch_row for row in self.rows])

    def includes(self, sequence: Sequence) -> bool:
        """Whether the sequence is part of this step already."""
        return sequence.last_step == self.number

    def draws(self) -> list[Draw]:
        """Return the tokens to draw after it, in the order of its logits rows."""
        return [draw for row in self.rows if row.batch_row.wants_logits for draw in row.draws()]

    def sample_rows(self) -> list[SampleRow]:
        """Return the same draws as the sampler reads them."""
        rows: list[SampleRow] = []
        wanting = (row for row in self.rows if row.batch_row.wants_logits)
        for logits_row, row in enumerate(wanting):
            request = row.sequence.request
            rows += [
                SampleRow(
                    logits_row,
                    request.request.sampling,
                    request.prompt,
                    draw.sequence.output_ids if draw.index == draw.sequence.index else [],
                    draw.index,
                )
                for draw in row.draws()
            ]
        return rows
