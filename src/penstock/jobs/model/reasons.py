"""What the reason of a failed job means to whoever asked for it, and what they can do. Reasons are
words, made to count by; these are the sentences, the same in the API, on the page and in the
terminal."""

from __future__ import annotations

_OPERATOR = "Whoever runs the workers must see to it: their log says more"
_AGAIN = "Retry the job later"

_MEANING = {
    "bad_reference": ("it is named in a way that leads nowhere", "Correct the path or address"),
    "cancelled": ("somebody stopped it", "Retry the job if that was a mistake"),
    "configuration": ("the workers are not set up for it", _OPERATOR),
    "crashed": ("reading it killed the reader, so it is damaged badly", "Export it again"),
    "forbidden": (
        "its path or host is not allowed",
        "Upload the file, or have its host added to media.hosts",
    ),
    "gave-up": (
        "each attempt ended its worker",
        "Convert it to a common format and submit that, or ask whoever runs the workers",
    ),
    "guard_unavailable": ("the workers had no room for it", _AGAIN),
    "handler-error": ("there is a mistake in the program", _OPERATOR),
    "live": ("the video has not ended yet", "Retry the job once it has"),
    "machine": ("the workers' machine was in trouble", _AGAIN),
    "malformed": (
        "it is damaged, or not what its name says",
        "Open it on your own machine, and export it again if that fails",
    ),
    "network": ("it could not be fetched", f"See that its address works. {_AGAIN}"),
    "no_audio": ("there is no sound in it", "Submit a recording with an audio track"),
    "no_recording": (
        "nobody said where recordings of YouTube videos are",
        "Submit the recording itself, or have media.youtube_media set",
    ),
    "no_video": ("there are no pictures in it", "Submit it as audio: --type audio"),
    "no_youtube_key": ("there is no key for YouTube", _OPERATOR),
    "not_found": ("it is not there", "See that the path or address is right, or upload the file"),
    "out_of_memory": ("it takes more memory than it may", "Submit it in parts, or smaller"),
    "protected": ("it is encrypted", "Submit a copy without a password"),
    "quota": ("a service has had enough questions for now", _AGAIN),
    "time-limit": ("it took longer than its stage may", "Submit it in parts"),
    "timeout": ("it took too long", f"{_AGAIN}, or submit it in parts"),
    "too_large": ("it is larger than it may be", "Submit it in parts, or compressed"),
    "too_long": ("it is longer than it may be", "Submit it in parts"),
    "trouble": ("the workers' database or broker was in trouble", _AGAIN),
    "unavailable": ("a service had a problem of its own", _AGAIN),
    "unsupported": (
        "its format is not read here, or it is damaged",
        "Convert it, to mp3, mp4, pdf or docx for example",
    ),
}


def meaning_of(reason: str) -> str:
    """What happened, and what to do; "" for reasons of somebody's own pipeline."""
    if reason not in _MEANING:
        return ""
    why, what_to_do = _MEANING[reason]
    return f"{why}. {what_to_do}."
