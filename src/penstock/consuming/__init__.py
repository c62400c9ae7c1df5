"""Applications: typed handlers of messages, and everything around them."""

from penstock.consuming.app import App
from penstock.consuming.router import Router
from penstock.consuming.signature import Attribute, Attributes

__all__ = ["App", "Attribute", "Attributes", "Router"]
