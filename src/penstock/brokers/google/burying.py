"""Dead letters that we send: Google moves what fails too often, not what is never to come again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.brokers.google.publishing import Publishing
from penstock.clock import PreciseTime
from penstock.config import DeadLetterPolicy, SubscriptionConfig, split_name
from penstock.message import Delivery, Draft, PublishFault

_SOURCE = "CloudPubSubDeadLetterSource"

_log = logging.getLogger("penstock")


async def bury(
    publishing: Publishing,
    project: str,
    config: SubscriptionConfig,
    policy: DeadLetterPolicy,
    deliveries: Sequence[Delivery],
) -> set[str]:
    """Store the deliveries with the dead letters of their subscription, as Google would. Returns
    the ack ids of those that are there now."""
    letters = [_letter(delivery, config, project) for delivery in deliveries]
    buried: set[str] = set()
    answers = await publishing.publish(policy.topic, letters)
    for delivery, answer in zip(deliveries, answers, strict=True):
        if isinstance(answer, PublishFault):
            _log.warning(
                "Message %r, rejected by subscription %r, comes again: its dead-letter topic does "
                "not take it: %s",
                *(delivery.record.message_id, config.name, answer.error),
            )
        else:
            buried.add(delivery.ack_id)
    return buried


def _letter(delivery: Delivery, config: SubscriptionConfig, project: str) -> Draft:
    record = delivery.record
    of_project, name = split_name(config.name, project)
    source = {
        f"{_SOURCE}DeliveryCount": str(delivery.delivery_attempt),
        f"{_SOURCE}Subscription": name,
        f"{_SOURCE}SubscriptionProject": of_project,
        f"{_SOURCE}TopicPublishTime": PreciseTime.from_ns(record.publish_time_ns).isoformat(),
    }
    return Draft(
        record.data,
        {**record.attributes, **source},
        record.ordering_key,
        record.message_id,
        record.subject if record.subject != config.topic else None,
    )
