"""Servers and a cluster of a trial's own."""

import pytest
from tests.support.servers import NatsServer, PostgresServer
from tests.support.spark_cluster import SparkCluster


@pytest.fixture
def server(tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def postgres():
    with PostgresServer() as running:
        yield running


@pytest.fixture
def cluster(tmp_path):
    with SparkCluster(tmp_path / "spark") as running:
        yield running
