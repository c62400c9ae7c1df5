"""What a package offers is a promise: a name comes or goes by decision, never by accident."""

import ast
import importlib
from enum import Enum
from inspect import isclass, isfunction
from pathlib import Path

import pytest
from msgspec import Struct

import penstock

ROOT = Path(penstock.__file__).parent

SURFACE = {
    "penstock": [
        "AckResponse",
        "ActionResult",
        "App",
        "Attribute",
        "Attributes",
        "Backoff",
        "Bridge",
        "BrokerKind",
        "Capabilities",
        "CloseReport",
        "DeadLetter",
        "DeadLetterPolicy",
        "DeadLetters",
        "Draft",
        "Event",
        "Expect",
        "Flight",
        "FlightState",
        "FlowControl",
        "LeaseExtension",
        "ManagedPublisher",
        "Message",
        "MessageStream",
        "PenstockError",
        "PreciseTime",
        "PubSub",
        "PublishRetry",
        "PublisherListener",
        "PushDelivery",
        "Receipt",
        "Reject",
        "Retry",
        "RetryPolicy",
        "Router",
        "Selection",
        "ServerName",
        "Streaming",
        "SubscriberOptions",
        "Subscription",
        "SubscriptionStatus",
        "Topic",
        "TopicStatus",
        "connect",
        "errors",
        "register_broker",
    ],
    "penstock.bridge": [
        "ActionResult",
        "Bridge",
        "BridgeSettings",
        "ConnectionState",
        "Consumer",
        "Envelope",
        "Event",
        "EventCall",
        "MalformedEventError",
        "Provisioned",
        "Provisioner",
        "PublishResult",
        "Recovery",
        "classify",
    ],
    "penstock.brokers.google": [
        "GoogleBroker",
    ],
    "penstock.brokers.memory": [
        "MemoryBroker",
    ],
    "penstock.consuming": [
        "App",
        "Attribute",
        "Attributes",
        "Router",
    ],
    "penstock.consuming.middleware": [
        "Call",
        "EffectsOnce",
        "Next",
        "Seen",
        "SeenHere",
        "circuit_breaker",
        "dead_letters",
        "deduplicate",
        "inbox",
        "inbox_connection",
        "logs",
        "metrics",
        "observe",
        "rate_limit",
        "retry",
        "timeout",
        "tracing",
    ],
    "penstock.dead_letters": [
        "DeadLetter",
        "DeadLetters",
        "Origin",
        "Replay",
        "Selection",
    ],
    "penstock.emulator": [
        "Emulator",
    ],
    "penstock.jobs": [
        "AudioInfo",
        "AudioJob",
        "Count",
        "DocumentInfo",
        "DocumentJob",
        "Done",
        "InvalidMessageError",
        "Job",
        "JobCancelled",
        "JobEvent",
        "JobFailed",
        "JobQueued",
        "JobRecord",
        "JobService",
        "JobSettings",
        "JobStage",
        "JobSystem",
        "JobView",
        "JobViews",
        "JobWish",
        "LoggingObserver",
        "MEDIA",
        "MediaType",
        "MetadataReady",
        "Moment",
        "Observer",
        "OpaqueId",
        "Outcome",
        "Pipeline",
        "ProcessingJob",
        "ProcessingJobStore",
        "Projection",
        "PrometheusObserver",
        "PubSubClient",
        "Publisher",
        "Rate",
        "Reject",
        "Retry",
        "Seconds",
        "Segment",
        "SpeakerRole",
        "SqlJobViews",
        "Stage",
        "StageEvent",
        "StageSettings",
        "StageWorker",
        "Subscriber",
        "Text",
        "TranscriptComplete",
        "VideoInfo",
        "VideoJob",
        "Word",
        "YouTubeInfo",
        "YouTubeJob",
        "decode_event",
        "decode_job",
        "encode_event",
        "encode_job",
        "idempotent",
        "job_system",
        "json_schema",
        "load_settings",
        "opaque_user_id",
    ],
    "penstock.media": [
        "AudioStream",
        "DocumentText",
        "GuardPool",
        "Limits",
        "MediaError",
        "MediaInfo",
        "MediaSource",
        "Segment",
        "SpeakerRole",
        "SpeakerRoleRegistry",
        "Transcriber",
        "Transcript",
        "VideoStream",
        "YouTubeClient",
        "YouTubeVideo",
        "extract_text",
        "extract_text_blocking",
        "parse_video_id",
        "probe",
        "probe_blocking",
        "run_guarded",
        "run_guarded_blocking",
        "stream_guarded",
    ],
    "penstock.message": [
        "AckResponse",
        "Attributes",
        "Delivery",
        "Draft",
        "Expect",
        "MAX_ACK_DEADLINE",
        "MAX_ATTRIBUTES",
        "MAX_ATTRIBUTE_KEY_BYTES",
        "MAX_ATTRIBUTE_VALUE_BYTES",
        "MAX_DATA_BYTES",
        "MAX_MESSAGE_ID_BYTES",
        "MAX_ORDERING_KEY_BYTES",
        "Message",
        "Owner",
        "PublishFault",
        "Receipt",
        "Record",
        "Settlement",
        "Verb",
        "check_ack_deadline",
        "check_text",
    ],
    "penstock.observing": [
        "Observer",
        "Observers",
        "OpenTelemetryObserver",
        "PrometheusObserver",
        "watch",
    ],
    "penstock.publishing": [
        "Flight",
        "FlightState",
        "ManagedPublisher",
        "PublishOptions",
        "PublishRetry",
        "PublisherListener",
    ],
    "penstock.spark": [
        "activate",
        "session",
    ],
    "penstock.subscribing": [
        "CloseReport",
        "LeaseExtension",
        "MessageStream",
        "StreamStatistics",
        "Streaming",
        "SubscriberOptions",
        "Subscription",
    ],
    "penstock.testing": [
        "HastyLoop",
        "MadeMessage",
        "TestApp",
        "VirtualClock",
        "VirtualTimeLoop",
        "eventually",
        "make_message",
        "run_hasty",
        "run_real",
        "run_virtual",
        "settled",
    ],
    "penstock.testing.conformance": [
        "BrokerConformance",
        "Harness",
        "Scene",
        "behaviour",
    ],
    "penstock.transactional": [
        "Arrival",
        "Database",
        "DeadRow",
        "Inbox",
        "InboxStatus",
        "Outbox",
        "OutboxStatus",
        "Relay",
        "RelayStatistics",
        "Taken",
        "database_time",
        "insert_into",
    ],
    "penstock.web": [
        "create_app",
        "serve",
    ],
}


def is_code(member: object) -> bool:
    if isclass(member):
        return not issubclass(member, Struct | Enum)
    return isfunction(member)


def packages_with_a_surface() -> set[str]:
    found = set()
    for init in ROOT.rglob("__init__.py"):
        tree = ast.parse(init.read_text())
        names = {
            getattr(t, "id", "") for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
        }
        if "__all__" in names:
            found.add(".".join(("penstock", *init.parent.relative_to(ROOT).parts)))
    return found


def test_every_package_with_a_surface_is_listed_here():
    assert packages_with_a_surface() == set(SURFACE)


@pytest.mark.parametrize("package", SURFACE)
def test_a_package_offers_what_it_promised_and_nothing_else(package):
    offered = importlib.import_module(package)
    assert sorted(offered.__all__) == SURFACE[package]
    for name in offered.__all__:
        assert hasattr(offered, name), name


@pytest.mark.parametrize("package", SURFACE)
def test_what_is_offered_is_documented(package):
    """But for what is sent: its fields are described in the JSON Schema."""
    offered = importlib.import_module(package)
    undocumented = [
        name
        for name in offered.__all__
        if is_code(member := getattr(offered, name)) and not member.__doc__
    ]
    assert undocumented == []
