"""The fence around a batch, on marks in memory."""

import pyarrow as pa
import pytest

from penstock.errors import FailedPreconditionError, UnavailableError
from penstock.message import Draft, Receipt
from penstock.rules.backoff import Backoff
from penstock.spark.options import SinkOptions
from penstock.spark.ranges import PatientRanges
from penstock.spark.sink import writer
from penstock.spark.sink.fence import Attempt, Fence, Tally
from penstock.spark.sink.rows import Rows
from tests.support.range_logs import FakeRangeLog

OPTIONS = SinkOptions.of({"url": "nats://nowhere", "topic": "copied", "fence": "true"})


@pytest.fixture
def log():
    made = FakeRangeLog()
    made.fill("copied", 3)
    return made


def drafts(*numbers):
    return [("copied", Draft(b"%d" % n, message_id=f"id-{n}")) for n in numbers]


def begun(log, batch, attempt="first", **how):
    fence = Fence(log, OPTIONS, Attempt("query", batch, attempt))
    fence.begin(**how)
    return fence


def publish(log, fence, *numbers):
    """What a task does with its rows."""
    missing = fence.not_stored(drafts(*numbers))
    for _, draft in missing:
        log.topics["copied"].add(draft)
    return [draft.message_id for _, draft in missing]


def tally(*numbers):
    made = Tally()
    made.count(drafts(*numbers))
    return made


def test_a_batch_that_was_sealed_is_only_looked_at_again(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal(tally(1, 2))
    again = begun(log, 1, "second")
    assert again.is_done
    again.seal(tally(2, 1))


def test_a_batch_that_died_half_way_stores_only_what_is_missing(log):
    publish(log, begun(log, 1), 1, 2)
    again = begun(log, 1, "second")
    assert not again.is_done
    assert publish(log, again, 1, 2, 3) == ["id-3"]


def test_a_batch_that_died_half_way_may_be_shared_out_otherwise(log):
    publish(log, begun(log, 1), 1, 2)
    publish(log, begun(log, 1), 3)
    stored = [publish(log, begun(log, 1, "second"), *some) for some in ((4, 3), (2,), (1, 5))]
    assert stored == [["id-4"], [], ["id-5"]]


def test_what_others_stored_meanwhile_is_not_remembered_where_ids_tell(log):
    publish(log, begun(log, 1), 1, 2)
    log.fill("copied", 5000)
    again = begun(log, 1, "second", named="id-")
    assert len(again._stored) == 2
    assert publish(log, again, 1, 2, 3) == ["id-3"]


class Stored:
    """A broker that has all it is given."""

    def __init__(self, log, on_publish):
        self.log = log
        self.on_publish = on_publish

    async def publish(self, topic, drafts):
        for draft in drafts:
            self.log.topics[topic].add(draft)
        self.on_publish()
        return [Receipt(draft.message_id, 1) for draft in drafts]

    async def aclose(self):
        pass


@pytest.mark.real_time
async def test_a_task_that_has_lost_its_batch_publishes_no_more_of_it(log, monkeypatch):
    slow = begun(log, 1)
    broker = Stored(log, on_publish=lambda: begun(log, 1, "second"))

    async def connected(_):
        return broker

    monkeypatch.setattr("penstock.spark.sink.writer.connected", connected)
    rows = [pa.RecordBatch.from_pydict({"data": [b"%d" % n]}) for n in range(5)]
    with pytest.raises(FailedPreconditionError, match="Another attempt has taken batch 1"):
        await writer.publish(
            OPTIONS, iter(rows), Rows("copied", "query", "1"), Attempt("query", 1, "first"), slow
        )
    assert len(log.topics["copied"].messages) == 4


def test_tasks_of_one_attempt_share_a_mark_and_look_at_nothing(log):
    publish(log, begun(log, 1), 1)
    assert publish(log, begun(log, 1), 1) == ["id-1"]
    assert not any(call.startswith("read") for call in log.calls)


def test_a_task_that_is_run_again_stores_only_what_is_missing(log):
    publish(log, begun(log, 1), 1)
    assert publish(log, begun(log, 1, task_again=True), 1, 2) == ["id-2"]


def test_the_next_batch_begins_afresh(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal(tally(1, 2))
    assert publish(log, begun(log, 2), 1, 2) == ["id-1", "id-2"]


def test_a_batch_with_other_rows_is_refused(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal(tally(1, 2))
    with pytest.raises(FailedPreconditionError, match="now has 2 or others"):
        begun(log, 1, "second").seal(tally(1, 3))


def test_an_older_batch_is_refused(log):
    begun(log, 5)
    with pytest.raises(FailedPreconditionError, match="went back in time"):
        begun(log, 4)


def test_a_second_attempt_takes_the_batch_over_and_the_first_is_refused(log):
    slow = begun(log, 1)
    fast = begun(log, 1, "second")
    with pytest.raises(FailedPreconditionError, match="Another attempt has taken batch 1"):
        slow.check()
    with pytest.raises(FailedPreconditionError, match="Another attempt has taken batch 1"):
        slow.seal(tally(1))
    fast.check()
    fast.seal(tally(1))
    assert begun(log, 1, "third").is_done


class LosesAnswers(FakeRangeLog):
    """Stores a mark and says that it could not be reached."""

    def set_mark(self, topic, name, data, *, replaces):
        first = not self.lost_answers
        version = super().set_mark(topic, name, data, replaces=replaces)
        self.lost_answers += 1
        if first:
            raise UnavailableError("the answer was lost")
        return version


def test_a_mark_whose_answer_was_lost_is_known_to_be_ours():
    log = LosesAnswers()
    log.fill("copied", 3)
    patient = PatientRanges(log, 60.0, proven=True, backoff=Backoff(initial=1e-6, maximum=1e-6))
    fence = begun(patient, 1)
    publish(log, fence, 1)
    fence.seal(tally(1))
    assert begun(patient, 1, "second").is_done
