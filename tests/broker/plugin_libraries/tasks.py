"""Tasks of taskiq with delays: `taskiq worker tasks:broker` does them, `tasks.py 300 1500` sends some."""

import asyncio
import os
import sys
import time

from taskiq import SmartRetryMiddleware
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

RETRY_AFTER = 1.5

broker = AioPikaBroker(
    url=os.environ["AMQP_URL"],
    # If taskiq declares the queue, it also binds it to the exchange that it publishes to.
    task_queues=[Queue(name="orders", declare="DECLARE" in os.environ)],
    delayed_message_exchange_plugin=True,
    delayed_message_exchange=Exchange(name="orders.delayed.in", declare=False),
).with_middlewares(SmartRetryMiddleware(default_delay=RETRY_AFTER, use_jitter=False))


def milliseconds():
    return int(time.time() * 1000)


@broker.task
async def charge(order, due):
    print(order, due, milliseconds(), flush=True)


# The due time of each order's retry.
again = {}


@broker.task(retry_on_error=True)
async def charge_again(order):
    if order in again:
        print(f"{order}-again", again.pop(order), milliseconds(), flush=True)
        return
    print(order, 0, milliseconds(), flush=True)
    again[order] = milliseconds() + int(RETRY_AFTER * 1000)
    raise RuntimeError("the bank is closed")


async def send(delays):
    await broker.startup()
    if len(delays) > 1:
        await charge.kiq("now", milliseconds())
        await charge_again.kiq("fails")
    for delay in delays:
        await charge.kicker().with_labels(delay=delay / 1000).kiq(str(delay), milliseconds() + delay)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send([int(word) for word in sys.argv[1:]]))
