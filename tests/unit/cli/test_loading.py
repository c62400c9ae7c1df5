"""Finding an app by name."""

import sys

import pytest

from penstock.cli.apps.loading import load_app
from penstock.errors import InvalidArgumentError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("loading_")]:
        del sys.modules[name]


def test_an_app_is_found_in_the_current_folder_by_name_or_made_by_a_function(folder):
    (folder / "loading_shop.py").write_text(
        "from penstock import App\napp = App()\n"
        "class Desk:\n    app = app\n\ndef make(): return app\n"
    )
    app = load_app("loading_shop:app")
    assert load_app("loading_shop:make") is load_app("loading_shop:Desk.app") is app


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("shop", "module:name"),
        (":app", "module:name"),
        ("loading_none:app", "no module 'loading_none'"),
        ("loading_none.deep:app", "no module 'loading_none.deep'"),
        ("loading_shop:nothing", "is not an App; its apps are orders, store"),
        ("loading_shop:number", "is not an App"),
    ],
)
def test_what_is_not_an_app_is_told(folder, address, said):
    source = "from penstock import App\nstore = orders = App()\nnumber = 5\n"
    (folder / "loading_shop.py").write_text(source)
    with pytest.raises(InvalidArgumentError, match=said):
        load_app(address)


def test_what_a_module_lacks_itself_is_its_own_trouble(folder):
    (folder / "loading_broken.py").write_text("import loading_missing\n")
    with pytest.raises(ModuleNotFoundError, match="loading_missing"):
        load_app("loading_broken:app")
