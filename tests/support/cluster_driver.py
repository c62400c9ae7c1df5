"""A driver on a cluster: reads a topic, writes one, then runs the pipeline until it is told to
stop. `python cluster_driver.py MASTER ARCHIVE URL DATABASE FOLDER`."""

import signal
import sys
from pathlib import Path

from cluster_handlers import PIPELINE  # type: ignore[import-not-found]

from penstock.jobs import load_settings
from penstock.spark import session
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline
from penstock.spark.session.shipping import shipped
from penstock.spark.session.starting import add_modules

master, archive, url, database, folder = sys.argv[1:]
small = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
spark = session("cluster", master, config={**shipped(archive), **small}, log_level="ERROR")
add_modules(spark, [str(Path(__file__).with_name("cluster_handlers.py"))])
orders = spark.read.format("penstock").option("url", url).option("topic", "orders")
kept = orders.option("minPartitions", "4").load().where("sequence > 40").select("data")
kept.write.format("penstock").option("url", url).option("topic", "copied").mode("append").save()
settings = load_settings(environ={}, pipeline=PIPELINE, url=url, database=database)
options = PipelineOptions(
    checkpoints=f"{folder}/checkpoints",
    history=f"{folder}/history",
    pipeline="cluster_handlers:PIPELINE",
    trigger=0.1,
    partition=5,
)
pipeline = SparkPipeline(spark, settings, options)
signal.signal(signal.SIGTERM, lambda *_: pipeline.stop())
pipeline.run()
spark.stop()
