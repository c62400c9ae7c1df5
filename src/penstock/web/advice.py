"""What a failed job's reason means, and what its owner can do. Reasons are words, made to count by;
these are the sentences for people, the same in the API, on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

_LATER = "retry it later"
_OPERATOR = "ask whoever runs this system, then retry it"

ADVICE: Mapping[str, str] = {
    "bad_reference": "its source is neither a file nor an https address; ask for a new job",
    "cancelled": f"it was stopped from outside; {_LATER}",
    "configuration": f"the workers are not set up for it; {_OPERATOR}",
    "crashed": "reading it crashed the reader; convert it to a common format and send that",
    "forbidden": "its source may not be read: it is outside the media folder or of another host",
    "gave-up": "each attempt ended its worker; convert the media, or ask whoever runs this system",
    "guard_unavailable": f"the reader could not be started; {_OPERATOR}",
    "handler-error": f"a mistake in the program, told in the workers' log; {_OPERATOR}",
    "live": "the video is still live; retry it when it has ended",
    "machine": f"the worker's machine had trouble, such as a full disk; {_OPERATOR}",
    "malformed": "the file is damaged or not what its name says; check it and send it again",
    "network": f"its address could not be read; {_LATER}",
    "no_audio": "there is no sound in it; send a file that has some",
    "no_recording": "YouTube gives no recordings and none is kept here; send one as a file",
    "no_video": "there are no pictures in it; ask for an audio job instead",
    "no_youtube_key": f"the workers have no key for YouTube; {_OPERATOR}",
    "not_found": "there is nothing at its source any more; send it again, or correct the path",
    "out_of_memory": "reading it takes more memory than allowed; send it in parts",
    "protected": "it is encrypted; send it without a password",
    "quota": f"a service has had enough requests for now; {_LATER}",
    "time-limit": "it took longer than its stage may; send it in parts, or raise the time limit",
    "timeout": f"reading it took too long; {_LATER}, or send it in parts",
    "too_large": "it is larger than allowed; send it in parts",
    "too_long": "it is longer than allowed; send it in parts",
    "trouble": f"the workers' database or broker had trouble; {_LATER}",
    "unavailable": f"the server of its address had trouble; {_LATER}",
    "unsupported": "its format is not read here; convert it to a common one and send that",
}


def advice_for(reason: str | None) -> str | None:
    """None for reasons of pipelines of one's own."""
    return None if reason is None else ADVICE.get(reason)
