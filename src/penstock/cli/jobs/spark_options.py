"""How Spark is started and what it keeps, for commands that run the pipeline on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.sharing import with_options
from penstock.errors import InvalidArgumentError

Master = Annotated[
    str | None, typer.Option(help="Spark's master: local[*], local-cluster[…], spark://HOST:PORT.")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://HOST:PORT.")]
Stages = Annotated[
    str | None,
    typer.Option(help="Which, with commas between; all, and the projection, unless given."),
]
Checkpoints = Annotated[
    str, typer.Option(help="Where Spark keeps how far it is; all machines must see it.")
]
History = Annotated[
    str | None, typer.Option(help="Where the projection keeps events, as a Delta table.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, as key=value; repeatable.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--py-files", help="Modules for the tasks: .py, .zip or .whl; repeatable."),
]
Environment = Annotated[
    Path | None,
    typer.Option(help="All that tasks need beside Spark: what `penstock pipeline ship` made."),
]


@dataclass(frozen=True)
class SparkOptions:
    """What a command gets that is declared `with_spark`."""

    master: str | None
    remote: str | None
    stages: str | None
    checkpoints: str
    history: str | None
    conf: list[str] | None
    files: list[Path] | None
    environment: Path | None

    def of_pipeline(self, reference: str) -> dict[str, Any]:
        """What a pipeline on Spark is told of this."""
        given: dict[str, Any] = {"checkpoints": self.checkpoints, "history": self.history}
        given["pipeline"] = reference
        if self.stages is not None:
            names = tuple(name.strip() for name in self.stages.split(",") if name.strip())
            given["stages"] = names
        return given

    def config(self) -> dict[str, str]:
        from penstock.spark.session.shipping import shipped

        pairs = [text.partition("=") for text in self.conf or ()]
        for name, separator, _ in pairs:
            if not separator or not name.startswith("spark."):
                raise InvalidArgumentError(
                    f"--conf takes a setting of Spark, as spark.executor.memory=2g, not {name!r}"
                )
        given = {name: value for name, _, value in pairs}
        return given if self.environment is None else shipped(self.environment) | given

    def modules(self) -> list[str]:
        for file in self.files or ():
            if not file.is_file():
                raise InvalidArgumentError(f"--py-files: there is no file {str(file)!r}")
        return [str(file.absolute()) for file in self.files or ()]


def _spark_options(
    master: Master = None,
    remote: Remote = None,
    stages: Stages = None,
    checkpoints: Checkpoints = "penstock-checkpoints",
    history: History = None,
    conf: Conf = None,
    py_files: Files = None,
    environment: Environment = None,
) -> AbstractContextManager[SparkOptions]:
    given = (master, remote, stages, checkpoints, history, conf, py_files, environment)
    return nullcontext(SparkOptions(*given))


with_spark = with_options(_spark_options)
