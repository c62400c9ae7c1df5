"""Google's calls. The table says everything there is to know of each: what goes in and out, how it
travels, and where it is found over HTTP. Handlers, reflection and REST are made from it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2
from msgspec import Struct

from penstock.googlepubsub.messages import Empty, message


class Travel(Enum):
    UNARY = "unary"
    WAITING = "waiting"
    """Unary, and told how long the caller will wait."""
    STREAM = "stream"


class HttpRule(Struct, frozen=True):
    """`path` names fields in braces; `body` is the field that the body holds, `*` for all."""

    verb: str
    path: str
    body: str = ""


class Rpc(Struct, frozen=True):
    service: str
    name: str
    request: Any
    response: Any
    travel: Travel = Travel.UNARY
    http: tuple[HttpRule, ...] = ()

    @property
    def method(self) -> str:
        """What the function that serves it is called."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")


PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
SCHEMAS = "google.pubsub.v1.SchemaService"
IAM = "google.iam.v1.IAMPolicy"

# A dot stands for the name with Request or Response behind it.
_TABLE = {
    PUBLISHER: """
        CreateTopic             Topic  Topic         PUT     {name=TOPIC}                      *
        UpdateTopic             .      Topic         PATCH   {topic.name=TOPIC}                *
        Publish                 .      .             POST    {topic=TOPIC}:publish             *
        GetTopic                .      Topic         GET     {topic=TOPIC}
        ListTopics              .      .             GET     {project=projects/*}/topics
        ListTopicSubscriptions  .      .             GET     {topic=TOPIC}/subscriptions
        ListTopicSnapshots      .      .             GET     {topic=TOPIC}/snapshots
        DeleteTopic             .      Empty         DELETE  {topic=TOPIC}
        DetachSubscription      .      .             POST    {subscription=SUB}:detach
    """,
    SUBSCRIBER: """
        CreateSubscription      Subscription  Subscription  PUT  {name=SUB}                    *
        GetSubscription         .      Subscription  GET     {subscription=SUB}
        UpdateSubscription      .      Subscription  PATCH   {subscription.name=SUB}           *
        ListSubscriptions       .      .             GET     {project=projects/*}/subscriptions
        DeleteSubscription      .      Empty         DELETE  {subscription=SUB}
        ModifyAckDeadline       .      Empty         POST    {subscription=SUB}:modifyAckDeadline *
        Acknowledge             .      Empty         POST    {subscription=SUB}:acknowledge    *
        Pull                    .      .             POST    {subscription=SUB}:pull           *
        StreamingPull           .      .
        ModifyPushConfig        .      Empty         POST    {subscription=SUB}:modifyPushConfig *
        GetSnapshot             .      Snapshot      GET     {snapshot=SNAPSHOT}
        ListSnapshots           .      .             GET     {project=projects/*}/snapshots
        CreateSnapshot          .      Snapshot      PUT     {name=SNAPSHOT}                   *
        UpdateSnapshot          .      Snapshot      PATCH   {snapshot.name=SNAPSHOT}          *
        DeleteSnapshot          .      Empty         DELETE  {snapshot=SNAPSHOT}
        Seek                    .      .             POST    {subscription=SUB}:seek           *
    """,
    SCHEMAS: """
        CreateSchema            .      Schema        POST    {parent=projects/*}/schemas schema
        GetSchema               .      Schema        GET     {name=SCHEMA}
        ListSchemas             .      .             GET     {parent=projects/*}/schemas
        ListSchemaRevisions     .      .             GET     {name=SCHEMA}:listRevisions
        CommitSchema            .      Schema        POST    {name=SCHEMA}:commit              *
        RollbackSchema          .      Schema        POST    {name=SCHEMA}:rollback            *
        DeleteSchemaRevision    .      Schema        DELETE  {name=SCHEMA}:deleteRevision
        DeleteSchema            .      Empty         DELETE  {name=SCHEMA}
        ValidateSchema          .      .             POST    {parent=projects/*}/schemas:validate *
        ValidateMessage         .      .        POST  {parent=projects/*}/schemas:validateMessage *
    """,
    IAM: """
        SetIamPolicy            .      Policy        POST    {resource=ANY}:setIamPolicy       *
        GetIamPolicy            .      Policy        GET     {resource=ANY}:getIamPolicy
        TestIamPermissions      .      .             POST    {resource=ANY}:testIamPermissions *
    """,
}  # fmt: skip
_PATHS = {
    "TOPIC": ("projects/*/topics/*",),
    "SUB": ("projects/*/subscriptions/*",),
    "SNAPSHOT": ("projects/*/snapshots/*",),
    "SCHEMA": ("projects/*/schemas/*",),
    "ANY": tuple(
        f"projects/*/{kind}/*" for kind in ("topics", "subscriptions", "snapshots", "schemas")
    ),
}
_TRAVEL = {"Pull": Travel.WAITING, "StreamingPull": Travel.STREAM}


def _rpc(service: str, line: str) -> Rpc:
    name, request, response, *http = line.split()
    return Rpc(
        service,
        name,
        _message(f"{name}Request" if request == "." else request),
        _message(f"{name}Response" if response == "." else response),
        _TRAVEL.get(name, Travel.UNARY),
        tuple(_rules(*http)) if http else (),
    )


def _message(name: str) -> Any:
    if name == "Empty":
        return Empty
    if "Iam" in name:
        return getattr(iam_policy_pb2, name)
    return policy_pb2.Policy if name == "Policy" else message(name)


def _rules(verb: str, path: str, body: str = "") -> list[HttpRule]:
    for short, patterns in _PATHS.items():
        if f"={short}}}" in path:
            return [HttpRule(verb, f"/v1/{path.replace(short, full)}", body) for full in patterns]
    return [HttpRule(verb, f"/v1/{path}", body)]


RPCS = tuple(
    _rpc(service, line) for service, table in _TABLE.items() for line in table.strip().splitlines()
)
