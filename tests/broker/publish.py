"""Schedules one message with pika: URL and routing key are the arguments."""

import sys

import pika

url, routing_key = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_publish(
    exchange="delay",
    routing_key=routing_key,
    body=b"from Python",
    properties=pika.BasicProperties(
        delivery_mode=pika.DeliveryMode.Persistent,
        headers={"customer": "C-4"},
    ),
    mandatory=True,
)
connection.close()
