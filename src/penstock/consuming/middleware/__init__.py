"""What can be put around handlers, one a file; `app.use(…)` says in which order."""

from penstock.consuming.middleware.chain import Call, Next

__all__ = ["Call", "Next"]
