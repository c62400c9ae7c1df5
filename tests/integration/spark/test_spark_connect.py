"""The same through Spark Connect: reads, streams and sinks, with nothing to register."""

import subprocess
import sys
from pathlib import Path

from tests.support.nats_scenes import fill, make, stored
from tests.support.servers import NatsServer

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from penstock.spark import session

url, folder = sys.argv[1:]
spark = session("connect", remote="local[2]")
assert "connect" in type(spark).__module__, type(spark)
reader = spark.read.format("penstock").option("url", url).option("topic", "orders")
print(reader.load().where("sequence > 90").count())
try:
    spark.read.format("penstock").option("url", url).option("topic", "nowhere").load().schema
except Exception as error:
    print("Topic not found" in str(error))
source = spark.readStream.format("penstock").option("url", url).option("topic", "orders")
query = (
    source.load().select("data", "message_id").writeStream.format("penstock")
    .option("url", url).option("topic", "copied").option("checkpointLocation", folder)
    .trigger(availableNow=True).start()
)
print(query.awaitTermination(60))
spark.stop()
"""


def test_a_connect_session_reads_and_writes_alike(tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as server:
        make(server.url, "orders", "copied")
        fill(server.url, "orders", range(100))
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url, str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            timeout=280,
            cwd=ROOT,
            check=False,
        )
        assert ran.stdout.split() == ["10", "True", "True"], ran.stderr[-3000:]
        assert sorted(map(int, stored(server.url, "copied"))) == list(range(100))
