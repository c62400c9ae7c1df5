import pytest

from penstock import Draft, Expect
from penstock.config import DeadLetterPolicy, SubscriptionConfig, TopicConfig, check_name
from penstock.errors import InvalidArgumentError
from penstock.message import Record


def test_every_kind_of_bytes_is_taken_and_copied():
    changing = bytearray(b"abc")
    drafts = [Draft.of(changing), Draft.of(memoryview(changing)), Draft.of(b"abc")]
    changing[:] = b"xyz"
    assert [draft.data for draft in drafts] == [b"abc"] * 3
    assert all(type(draft.data) is bytes for draft in drafts)


def test_empty_texts_mean_none():
    draft = Draft.of(b"", {}, "", "", "")
    assert (draft.ordering_key, draft.message_id, draft.subject) == (None, None, None)


def test_drafts_do_not_share_their_attributes():
    assert Draft.of().attributes is not Draft.of().attributes


def test_payloads_do_not_show_in_a_repr():
    assert "secret" not in repr(Draft.of(b"secret", {"k": "secret"}))


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": "goog"},
        {"goo": "gle"},
        {"googclient_schemaname": "x"},
        {"a": "x" * 1024, "b" * 256: "x" * 1024},
        {"ä": "ö"},
        {"a": ""},
    ],
)
def test_attributes_are_judged_each_by_itself_and_taken_as_they_are(attributes):
    assert Draft.of(b"", attributes).attributes == attributes


def test_the_size_of_a_record_is_the_bytes_of_its_data_and_attributes():
    record = Record(1, "id", b"12", {"ä": "xyz", "b": ""}, None, "topic", 0)
    assert record.size == 2 + 2 + 3 + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": "text"}, "encode"),
        ({"data": None}, "NoneType"),
        ({"data": 5}, "int"),
        ({"attributes": [("a", "b")]}, "mapping"),
        ({"attributes": {"a": 1}}, "must be text"),
        ({"attributes": {1: "a"}}, "must be text"),
        ({"attributes": {"": "a"}}, "empty"),
        ({"attributes": {"googclient": "a"}}, "goog"),
        ({"attributes": {"a": "x\r\nNats-Rollup: all"}}, r"'\\r' at position 1"),
        ({"attributes": {"a\x00": "x"}}, "control character"),
        ({"attributes": {"a": "\x7f"}}, "control character"),
        ({"attributes": {"a": "\ud800"}}, "not valid text"),
        ({"attributes": {"a": "x" * 1025}}, "1025 bytes"),
        ({"attributes": {"ä" * 129: "x"}}, "258 bytes"),
        ({"attributes": {str(n): "" for n in range(101)}}, "at most 100"),
        ({"expect": "last"}, "must be an Expect"),
        ({"expect": Expect(last_id="x\r\nNats-Rollup: all")}, r"last_id .* '\\r' at position 1"),
        ({"expect": Expect(topic="orders\n")}, "topic .* control character"),
        ({"expect": Expect(last_id="\ud800")}, "not valid text"),
        ({"expect": Expect(last_sequence="1\r\nx: y")}, "last_sequence .* whole number"),
        ({"expect": Expect(last_subject_sequence=-1)}, "last_subject_sequence .* whole number"),
        ({"ttl": float("inf")}, "ttl must be"),
        ({"ttl": float("nan")}, "ttl must be"),
        ({"ordering_key": 5}, "must be text"),
        ({"ordering_key": "a\nb"}, "control character"),
        ({"ordering_key": "x" * 1025}, "at most 1024"),
        ({"message_id": "a\tb"}, "control character"),
        ({"subject": b"x"}, "must be text"),
    ],
)
def test_what_no_broker_could_take_is_refused(arguments, said):
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        Draft.of(**arguments)
    assert caught.value.code == 3


@pytest.mark.parametrize(
    "name", ["abc", "a-b.c_d~e+f%", "A" * 255, "job-processing", "project/abc"]
)
def test_names_google_takes_are_taken(name):
    assert check_name("Topic", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ab",
        "A" * 256,
        "1abc",
        "-abc",
        "a b c",
        "goog-x",
        "naïve",
        "a/b/c",
        "abc\n",
        None,
        "project/goog-x",
        "/abc",
        "-project/abc",
        "project/",
    ],
)
def test_names_google_refuses_are_refused_and_shown(name):
    with pytest.raises(InvalidArgumentError, match="name") as caught:
        check_name("Topic", name)
    assert name is None or repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopicConfig(name="ab"),
        lambda: TopicConfig(name="topic", message_retention=-1),
        lambda: TopicConfig(name="topic", duplicate_window="1"),
        lambda: SubscriptionConfig(name="sub", topic="x"),
        lambda: SubscriptionConfig(name="sub", topic="topic", ack_deadline=0),
        lambda: SubscriptionConfig(name="sub", topic="topic", ack_deadline=601),
        lambda: SubscriptionConfig(name="sub", topic="topic", ack_deadline="1"),
        lambda: SubscriptionConfig(name="sub", topic="topic", ack_deadline=True),
        lambda: SubscriptionConfig(name="sub", topic="topic", filter=None),
        lambda: SubscriptionConfig(name="sub", topic="topic", message_ordering=1),
        lambda: SubscriptionConfig(name="sub", topic="topic", retry_policy=5),
        lambda: SubscriptionConfig(name="sub", topic="topic", message_retention=0),
        lambda: DeadLetterPolicy(topic="dead", max_delivery_attempts=0),
        lambda: DeadLetterPolicy(topic="dead", max_delivery_attempts=101),
        lambda: DeadLetterPolicy(topic="dead", max_delivery_attempts=2.5),
        lambda: DeadLetterPolicy(topic="!"),
    ],
)
def test_impossible_configurations_are_refused(make):
    with pytest.raises(InvalidArgumentError):
        make()
