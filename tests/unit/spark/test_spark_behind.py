"""How far a query is behind, by what Spark says."""

from penstock.spark.behind import offsets_behind


def source(end, latest):
    return {"endOffset": end, "latestOffset": latest}


def test_messages_that_were_there_and_not_in_the_batch_are_counted_by_topic():
    progress = {
        "sources": [
            source('{"bills": 4, "orders": 10}', '{"bills": 4, "orders": 25}'),
            source({"orders": 20}, {"orders": 25, "news": 3}),
        ]
    }
    assert offsets_behind(progress) == {"bills": 0, "orders": 20, "news": 3}


def test_what_another_source_says_is_left_alone():
    """A rate source has a number, and files have a position of their own."""
    progress = {"sources": [source("17", "20"), source('{"logOffset": 3}', None), source(None, "")]}
    assert offsets_behind(progress) == {}


def test_a_query_that_has_ended_no_batch_says_nothing():
    assert offsets_behind(None) == {}


def test_segments_of_a_spool_are_no_messages():
    spooled = source('{"segment": 4}', '{"segment": 9}')
    assert offsets_behind({"sources": [spooled]}) == {}
    topic = source('{"@identity": {"segment": "x"}, "segment": 4}', '{"segment": 9}')
    assert offsets_behind({"sources": [spooled, topic]}) == {"segment": 5}
