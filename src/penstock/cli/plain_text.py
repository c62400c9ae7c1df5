"""Text that others wrote, such as names of files, for a terminal."""

from __future__ import annotations

import re

# Lone surrogates are bytes of a file's name that are no UTF-8; no output takes them.
_unprintable = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]").sub
_line_ends = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+").sub


def safe(text: str) -> str:
    """Without control characters, but for line ends and tabs."""
    return _unprintable("�", text)


def one_line(text: str) -> str:
    """Without any; line ends and tabs are spaces."""
    return safe(_line_ends(" ", text))
