"""Publish and receive, with no server."""

import asyncio

from penstock import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()

        @billing.on("message")
        async def handle(message: Message) -> None:
            print(f"billing {message.data.decode()} for {message.attributes['customer']}")
            message.ack()

        billing.open()
        await topic.publish_message(b"a book", {"customer": "ann"})
        await topic.publish_message(b"a lamp", {"customer": "bob"})
        await asyncio.sleep(0.1)
        await billing.close()


asyncio.run(main())

# prints:
# billing a book for ann
# billing a lamp for bob
