"""A query to be killed: one topic to another, in small batches, until told to stop."""

import sys
import time

from penstock.spark import session

master, url, source, sink, checkpoint, total = sys.argv[1:]
spark = session("chaos", master)
frame = (
    spark.readStream.format("penstock")
    .options(url=url, topic=source, maxOffsetsPerTrigger=2000, maxRecordsPerPartition=500)
    .load()
)
query = (
    frame.select("data", "message_id")
    .writeStream.format("penstock")
    .options(url=url, topic=sink, checkpointLocation=checkpoint, fence="true")
    .start()
)
shown = -1
while True:
    progress = query.lastProgress
    if progress is not None and progress["batchId"] != shown:
        shown = progress["batchId"]
        end = progress["sources"][0]["endOffset"]
        print("batch", shown, end, flush=True)
        if f": {int(total) + 1}}}" in str(end):
            break
    if query.exception() is not None:
        print("failed", query.exception(), flush=True)
        sys.exit(1)
    time.sleep(0.02)
query.stop()
spark.stop()
