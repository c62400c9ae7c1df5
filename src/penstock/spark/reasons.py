"""What went wrong, out of the pages that Spark says about it."""

from __future__ import annotations

from penstock import errors

_TRACEBACK = "Traceback (most recent call last):"
_OURS = "penstock.errors."
# The first line of an error of the JVM's, which says what was called; the second says why not.
_CALLED = "An error occurred while calling "
_LONGEST = 300


def reason_of(error: BaseException) -> str:
    """One line: what Python code raised, where that is what failed, else the first that is said."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_CALLED):
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    if not lines:
        return type(error).__name__
    raised = _raised(lines)
    ours = [line.partition(": ")[2] for line in raised if line.startswith(_OURS)]
    return ([*lines[:1], *raised, *ours])[-1][:_LONGEST]


def may_pass(error: BaseException) -> bool:
    """It is an error of ours that says to try again."""
    ours = [line for line in _raised(str(error).splitlines()) if line.startswith(_OURS)]
    kind = ours[-1].removeprefix(_OURS).partition(":")[0] if ours else ""
    return bool(getattr(getattr(errors, kind, None), "retryable", False))


def _raised(lines: list[str]) -> list[str]:
    """The last line of each traceback: the first that is not indented."""
    found = []
    within = False
    for line in lines:
        if _TRACEBACK in line:
            within = True
        elif within and not line.startswith(" "):
            found.append(line)
            within = False
    return found
