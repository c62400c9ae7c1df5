"""Messages of one ordering key arrive in order, one at a time, even when one of them fails."""

import asyncio
from collections import defaultdict

from penstock import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("accounts").create()
        ledger = await topic.subscription("ledger", message_ordering=True).create()
        balances: dict[str, int] = defaultdict(int)
        history: dict[str, list[str]] = defaultdict(list)

        @ledger.on("message")
        async def book(message: Message) -> None:
            account, amount = str(message.ordering_key), int(message.data)
            await asyncio.sleep(0.001)
            if amount == 20 and message.delivery_attempt == 1:
                history[account].append("failed")
                message.nack()
                return
            balances[account] += amount
            history[account].append(f"{amount:+}")
            message.ack()

        for amount in (10, 20, -5):
            for account in ("ann", "bob"):
                await topic.publish_message(str(amount).encode(), ordering_key=account)
        ledger.open()
        while (await ledger.describe()).backlog:
            await asyncio.sleep(0.01)
        for account in sorted(balances):
            print(f"{account}: {' '.join(history[account])} = {balances[account]}")


asyncio.run(main())

# prints:
# ann: +10 failed +20 -5 = 25
# bob: +10 failed +20 -5 = 25
