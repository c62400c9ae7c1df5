"""HTTP: the ingestion API and its status page. Needs `penstock[web]`."""

from penstock.extras import extra

with extra("web", "penstock.web"):
    from penstock.web.app import create_app
    from penstock.web.serve import serve

__all__ = ["create_app", "serve"]
