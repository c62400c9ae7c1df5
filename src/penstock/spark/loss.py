"""Messages that were to be read and are gone: an error, or a warning, as the options say."""

from __future__ import annotations

import logging

from penstock.errors import DataLossError
from penstock.spark.options import SourceOptions

_log = logging.getLogger("penstock")


def report_loss(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{what}. Keep messages longer than the query may be away, or set "
            "failOnDataLoss=false to go on without them"
        )
    _log.warning("%s; going on without them", what)
