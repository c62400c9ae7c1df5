"""A database as it was before tables had versions: the tables of each kind of database, and rows
that the programs of that time wrote."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from sqlalchemy import text

from penstock.transactional import Database

_HERE = Path(__file__).parent
ROWS: dict[str, list[dict[str, Any]]] = json.loads((_HERE / "rows.json").read_text())
JOB = ROWS["penstock_jobs"][0]["job_id"]


async def make_released_database(database: Database, *tables: str) -> None:
    """All tables, or those named."""
    statements = (_HERE / f"{database.dialect}.sql").read_text().split(";\n")
    async with database.transaction() as connection:
        for statement in filter(str.strip, statements):
            found = re.search(r"(?:TABLE|ON) (\w+)", statement)
            if found is not None and (not tables or found[1] in tables):
                await connection.execute(text(statement))
        for table in tables or ROWS:
            for row in ROWS[table]:
                names = ", ".join(row)
                values = ", ".join(f":{name}" for name in row)
                await connection.execute(
                    text(f"INSERT INTO {table} ({names}) VALUES ({values})"),  # noqa: S608
                    {name: _value(value) for name, value in row.items()},
                )


def _value(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value
