"""A message that keeps failing moves to a topic of its own, with its history."""

import asyncio

from penstock import DeadLetterPolicy, Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        dead = await pubsub.topic("orders-dead").create()
        billing = await topic.subscription(
            "billing",
            dead_letter_policy=DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=3),
        ).create()
        graveyard = await dead.subscription("graveyard").create()

        @billing.on("message")
        def bill(message: Message) -> None:
            amount = int(message.data)  # raises for what is not a number: a nack
            print(f"billed {amount}")
            message.ack()

        @billing.on("error")
        def report(error: Exception) -> None:
            print(f"failed: {type(error).__name__}")

        billing.open()
        await topic.publish_message(b"100")
        await topic.publish_message(b"a hundred")

        async for letter in graveyard:
            async with letter:
                attempts = letter.attributes["CloudPubSubDeadLetterSourceDeliveryCount"]
                print(f"{letter.data.decode()!r} given up after {attempts} attempts")
            break


asyncio.run(main())

# prints:
# billed 100
# failed: ValueError
# failed: ValueError
# failed: ValueError
# 'a hundred' given up after 3 attempts
