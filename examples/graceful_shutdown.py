"""On SIGTERM: stop pulling, finish what is in flight, say what was left, exit."""

import asyncio
import signal

from penstock import FlowControl, Message, PubSub


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async with PubSub() as pubsub:
        topic = await pubsub.topic("reports").create()
        printer = await topic.subscription(
            "printer", flow_control=FlowControl(max_messages=4)
        ).create()
        finished = 0

        @printer.on("message")
        async def render(message: Message) -> None:
            nonlocal finished
            await asyncio.sleep(0.5)
            finished += 1
            message.ack()

        for n in range(100):
            await topic.publish_message(f"report {n}".encode())
        printer.open()
        print("ready", flush=True)

        await stop.wait()
        print("stopping", flush=True)
        report = await printer.close(timeout=10)
        left = (await printer.describe()).backlog
        print(f"clean: {report.clean}; finished and left: {finished + left}")


asyncio.run(main())
