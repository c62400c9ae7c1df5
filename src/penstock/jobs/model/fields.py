"""What may travel in a message: identifiers, numbers and words of ours, never text of a user.

What was said, titles, file names and addresses stay in the store and are found by the job's id. The
types of media jobs are made of these and nothing else, and a test walks them to prove it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

from msgspec import Meta


def _only(pattern: str) -> Meta:
    """Text that is this and nothing else: `$` alone would let a line feed follow."""
    return Meta(pattern=f"^{pattern}$(?!\\n)")


JobId: TypeAlias = Annotated[str, _only(r"job_[0-9a-f]{32}")]
MediaId: TypeAlias = Annotated[str, _only(r"med_[0-9a-f]{32}")]
OpaqueId: TypeAlias = Annotated[str, _only(r"[A-Za-z0-9_-]{1,64}")]
"""A user, a correlation: whatever its owner knows it by, without room for a name or an address."""
TraceParent: TypeAlias = Annotated[str, _only(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")]
VideoId: TypeAlias = Annotated[str, _only(r"[A-Za-z0-9_-]{11}")]
Word: TypeAlias = Annotated[str, _only(r"[a-z0-9][a-z0-9_.,-]{0,47}")]
"""A word of ours: a codec, a format, a language, a reason."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=366 * 86_400)]
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
Run: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
