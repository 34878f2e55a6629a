"""What a history that fails raises."""

from __future__ import annotations


class DisagreementError(AssertionError):
    """A command or a table differs from the model.

    Attributes:
      kind: in which respect.
      step: the position and type of the step, "" after the last one.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.step = ""


def expect(holds: bool, kind: str, text: object) -> None:
    """Raises DisagreementError unless something is true."""
    if not holds:
        raise DisagreementError(kind, str(text))
