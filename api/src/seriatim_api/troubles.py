"""The troubles that a broker shows at `/readyz` when an administrator must act: one list for brokers and for status
commands.

A broker writes a line for each trouble, with the trouble's label. `seriatim cluster status`, and `kubectl seriatim
status` and `doctor`, find the labels and say what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble.

    Attributes:
        name: Its name, which is also the name of its runbook.
        number: The number of the error with which calls fail meanwhile; 0: no call fails because of it.
        remedy: What an administrator should do, in one sentence.
    """

    name: str
    number: int
    remedy: str

    @property
    def label(self) -> str:
        """The label that a broker writes before the text."""
        return f"{self.name} (error {self.number})" if self.number else self.name

    def line(self, text: str) -> str:
        """A line of `/readyz`; empty if there is no text."""
        return f"{self.label}: {text}" if text else ""


COORDINATOR_REFUSES: Final = Trouble(
    "coordinator-refuses",
    604,
    "do not restart brokers; make room in etcd, or give the brokers their right to write back: runbook "
    "coordinator-refuses",
)
COORDINATOR_BEHIND: Final = Trouble(
    "coordinator-behind",
    605,
    "restart and delete nothing; run seriatim coordinator rebuild: runbook coordinator-behind",
)
DISK_CONTRADICTS: Final = Trouble(
    "disk-contradicts",
    0,
    "keep this disk; look at its messages with seriatim chain recover BROKER: runbook disk-contradicts",
)
TROUBLES: Final = (COORDINATOR_BEHIND, COORDINATOR_REFUSES, DISK_CONTRADICTS)


def read(page: str) -> list[tuple[Trouble, str]]:
    """The troubles that a page of `/readyz` names, with the text of each.

    The answer of a process with several brokers has one line for each of them.
    """
    found = []
    for line in page.splitlines():
        for trouble in TROUBLES:
            _, label, text = line.partition(f"{trouble.label}: ")
            if label:
                found.append((trouble, text))
    return found
