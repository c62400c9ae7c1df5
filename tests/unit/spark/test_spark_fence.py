"""The fence around a batch, on marks in memory."""

import pytest

from penstock.errors import FailedPreconditionError, UnavailableError
from penstock.message import Draft
from penstock.rules.backoff import Backoff
from penstock.spark.options import SinkOptions
from penstock.spark.ranges import PatientRanges
from penstock.spark.sink.fence import Fence
from tests.support.range_logs import FakeRangeLog

OPTIONS = SinkOptions.of({"url": "nats://nowhere", "topic": "copied", "fence": "true"})


@pytest.fixture
def log():
    made = FakeRangeLog()
    made.fill("copied", 3)
    return made


def drafts(*numbers):
    return [("copied", Draft(b"%d" % n, message_id=f"id-{n}")) for n in numbers]


def begun(log, batch, partition=0):
    fence = Fence(log, OPTIONS, "query", partition, batch)
    fence.begin()
    return fence


def publish(log, fence, *numbers):
    """What the sink does with a batch."""
    fence.count(drafts(*numbers))
    missing = fence.not_stored(drafts(*numbers))
    for _, draft in missing:
        log.topics["copied"].add(draft)
    return [draft.message_id for _, draft in missing]


def test_a_batch_that_was_sealed_is_only_looked_at_again(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal()
    again = begun(log, 1)
    assert again.is_done
    again.count(drafts(2, 1))
    again.check_same()


def test_a_batch_that_died_half_way_stores_only_what_is_missing(log):
    publish(log, begun(log, 1), 1, 2)
    again = begun(log, 1)
    assert not again.is_done
    assert publish(log, again, 1, 2, 3) == ["id-3"]


def test_the_next_batch_begins_afresh(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal()
    assert publish(log, begun(log, 2), 1, 2) == ["id-1", "id-2"]


def test_a_batch_with_other_rows_is_refused(log):
    fence = begun(log, 1)
    publish(log, fence, 1, 2)
    fence.seal()
    again = begun(log, 1)
    again.count(drafts(1, 3))
    with pytest.raises(FailedPreconditionError, match="now has 2 or others"):
        again.check_same()


def test_an_older_batch_is_refused(log):
    begun(log, 5)
    with pytest.raises(FailedPreconditionError, match="went back in time"):
        begun(log, 4)
    begun(log, 4, partition=1)


def test_of_two_attempts_at_a_batch_the_second_to_write_is_refused(log):
    begun(log, 1)
    slow, fast = begun(log, 1), begun(log, 1)
    fast.seal()
    with pytest.raises(FailedPreconditionError, match="Another attempt is writing batch 1"):
        slow.seal()


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
    fence.seal()
    assert begun(patient, 1).is_done
