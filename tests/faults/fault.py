"""One seeded fault, and how it is put into a copy of the sources."""

from dataclasses import dataclass
from pathlib import Path


class StaleFaultError(Exception):
    """A fault's old text is not in its file exactly once: the code has moved on."""


@dataclass(frozen=True)
class Fault:
    """A wrong change of one file.

    Attributes:
        name: unique, in words joined by hyphens.
        path: file below the repository's root.
        old: text that is in it exactly once.
        new: what the fault makes of it.
        breaks: what goes wrong, in one sentence.
    """

    name: str
    path: str
    old: str
    new: str
    breaks: str

    def applied_to(self, text: str) -> str:
        """Return a file's text with the fault in it.

        Raises:
            StaleFaultError: the old text is not there exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise StaleFaultError(f"{self.name}: old text found {found} times in {self.path}")
        return text.replace(self.old, self.new)

    def put_into(self, root: Path) -> None:
        """Change the file below ``root``."""
        file = root / self.path
        file.write_text(self.applied_to(file.read_text(encoding="utf-8")), encoding="utf-8")
