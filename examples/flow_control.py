"""A window keeps a slow handler from being flooded: at most three messages at a time."""

import asyncio

from penstock import FlowControl, Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("thumbnails").create()
        resizer = await topic.subscription(
            "resizer", flow_control=FlowControl(max_messages=3)
        ).create()
        running = most = done = 0

        @resizer.on("message")
        async def resize(message: Message) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            done += 1
            message.ack()

        for n in range(30):
            await topic.publish_message(f"image {n}".encode())
        resizer.open()
        while done < 30:
            await asyncio.sleep(0.01)
        print(f"{done} images, never more than {most} at a time")


asyncio.run(main())

# prints:
# 30 images, never more than 3 at a time
