"""How the JVM that drives a pipeline is run."""

from __future__ import annotations

# It plans small batches and passes small rows on: code that is compiled quickly is worth more to it
# than code that was compiled well. With both compilers it spends twice the processor's time until
# the first batch has ended, and for hundreds of batches after that.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def driver_config() -> dict[str, str]:
    """Settings for `session()`, where it starts the JVM; whoever gives others means them."""
    return {"spark.driver.extraJavaOptions": _OPTIONS}
