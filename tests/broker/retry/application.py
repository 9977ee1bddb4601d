"""An application that fails at every attempt. It only declares a queue and rejects
messages. Prints each delivery as a line of JSON."""

import json
import sys
import time

import pika

url, app, attempts, expiration = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.exchange_declare("orders", "topic", durable=True)
channel.queue_declare(
    app + "-in",
    durable=True,
    arguments={
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "delay.retry",
        "x-dead-letter-routing-key": app,
    },
)
channel.queue_bind(app + "-in", "orders", "order." + app)
channel.queue_bind(app + "-in", "delay.dispatch", "delay." + "*." * 7 + app)
channel.confirm_delivery()
channel.basic_publish(
    "orders",
    "order." + app,
    b"\x00order\xff",
    pika.BasicProperties(
        delivery_mode=2,
        content_type="application/octet-stream",
        correlation_id="c-1",
        reply_to="replies",
        message_id="m-" + app,
        timestamp=1700000000,
        type="order",
        app_id="shop",
        priority=3,
        expiration=expiration or None,
        headers={"customer": "C-4", "nested": {"a": [1, True, None]}, "käse": "ü"},
    ),
    mandatory=True,
)
channel.basic_qos(prefetch_count=1)
for method, properties, body in channel.consume(app + "-in", inactivity_timeout=120):
    if method is None:
        sys.exit("nothing came for 120 s")
    headers = properties.headers
    mine = {name: value for name, value in headers.items() if not name.startswith(("delayline-", "x-"))}
    ours = {name: value for name, value in headers.items() if name.startswith("delayline-")}
    print(
        json.dumps(
            {
                "arrived": time.time_ns() // 1_000_000,
                "key": method.routing_key,
                "body": body.hex(),
                "properties": [
                    properties.content_type,
                    properties.correlation_id,
                    properties.reply_to,
                    properties.message_id,
                    properties.timestamp,
                    properties.type,
                    properties.app_id,
                    properties.priority,
                ],
                "headers": mine,
                "ours": ours,
                "rejected": time.time_ns() // 1_000_000,
            }
        ),
        flush=True,
    )
    channel.basic_nack(method.delivery_tag, requeue=False)
    attempts = int(attempts) - 1
    if attempts == 0:
        break
# The broker answers this after it has read the last rejection.
channel.cancel()
channel.queue_declare(app + "-in", passive=True)
connection.close()
