"""Finding an app by `module:name`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.consuming import App
from penstock.errors import InvalidArgumentError


def load_app(address: str) -> App:
    """The app at `module:name`, from the current folder or wherever Python finds the module.

    The name may be that of a function without arguments that makes it.
    """
    module_name, found, name = address.partition(":")
    if not found or not module_name or not name:
        raise InvalidArgumentError(
            f"An app is named module:name, such as shop:app, not {address!r}"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise
        raise InvalidArgumentError(
            f"There is no module {module_name!r} in {folder} or where Python looks"
        ) from None
    made: Any = module
    for part in name.split("."):
        made = getattr(made, part, None)
    if callable(made) and not isinstance(made, App):
        made = made()
    if not isinstance(made, App):
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        hint = f"; its apps are {', '.join(apps)}" if apps else "; it has no App"
        raise InvalidArgumentError(f"{name!r} of module {module_name!r} is not an App{hint}")
    return made
