"""The values a message is made of, from draft to settlement.

Draft ──publish──▶ Receipt            what the publisher holds
  └─ stored as ──▶ Record             what a log holds
                     └─▶ Delivery     a record on loan to one subscriber
                           └─▶ Message    a delivery with verbs, what a handler sees
                                 └─▶ Settlement   the answer to a delivery
"""

from penstock.message.checks import (
    MAX_ACK_DEADLINE,
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_DATA_BYTES,
    MAX_MESSAGE_ID_BYTES,
    MAX_ORDERING_KEY_BYTES,
    check_ack_deadline,
    check_text,
)
from penstock.message.received import Attributes, Message, Owner
from penstock.message.values import (
    AckResponse,
    Delivery,
    Draft,
    Expect,
    PublishFault,
    Receipt,
    Record,
    Settlement,
    Verb,
)

__all__ = [
    "MAX_ACK_DEADLINE",
    "MAX_ATTRIBUTES",
    "MAX_ATTRIBUTE_KEY_BYTES",
    "MAX_ATTRIBUTE_VALUE_BYTES",
    "MAX_DATA_BYTES",
    "MAX_MESSAGE_ID_BYTES",
    "MAX_ORDERING_KEY_BYTES",
    "AckResponse",
    "Attributes",
    "Delivery",
    "Draft",
    "Expect",
    "Message",
    "Owner",
    "PublishFault",
    "Receipt",
    "Record",
    "Settlement",
    "Verb",
    "check_ack_deadline",
    "check_text",
]
