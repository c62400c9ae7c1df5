"""`penstock pipeline ship` and `manifests`: what clusters need to run the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ship(
    target: Annotated[Path, typer.Argument(help="The archive to write: NAME.tar.gz.")],
    extras: Annotated[
        str | None,
        typer.Option(help="Of Penstock, with commas between; those installed here unless given."),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--with", help="Another distribution; repeatable.")
    ] = None,
) -> None:
    """Pack what tasks need beside Spark, as it is installed here, for `--environment`."""
    from penstock.spark.session.shipping import ship as pack

    chosen = None if extras is None else [name.strip() for name in extras.split(",")]
    packed = pack(target, extras=chosen, more=more or ())
    typer.echo(f"{target}: {packed.size / 2**20:.0f} MiB, {', '.join(packed.names)}.")


def manifests(
    image: Annotated[str, typer.Option(help="Spark 4.3 with Penstock in its Python.")],
    url: Annotated[str, typer.Option(help="The broker, as pods reach it: nats://HOST.")],
    name: Annotated[str, typer.Option(help="Of all that is made.")] = "penstock-pipeline",
    namespace: Annotated[str, typer.Option(help="Where it is made.")] = "default",
    secret: Annotated[
        str, typer.Option(help="The Secret whose key `database` is the address of the jobs.")
    ] = "penstock",  # noqa: S107
    executors: Annotated[int, typer.Option(min=1, help="How many.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Of each executor.")] = 1,
    memory: Annotated[str, typer.Option(help="Of each executor.")] = "2g",
    storage: Annotated[str, typer.Option(help="For checkpoints, history and media.")] = "20Gi",
    arguments: Annotated[
        list[str] | None, typer.Argument(help="More for `penstock pipeline run`, behind --.")
    ] = None,
) -> None:
    """Print what runs the pipeline on Kubernetes, for `kubectl apply -f -`."""
    from penstock.spark.kubernetes import OnKubernetes, render

    wanted = OnKubernetes(
        image=image,
        url=url,
        name=name,
        namespace=namespace,
        secret=secret,
        executors=executors,
        cores=cores,
        memory=memory,
        storage=storage,
        arguments=arguments or (),
    )
    typer.echo(render(wanted), nl=False)
