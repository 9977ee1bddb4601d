"""Publishes what standard input says, one JSON object a line, past the router."""

import json
import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
# A quorum queue may lose what it has not confirmed when the channel is closed.
channel.confirm_delivery()
for line in sys.stdin:
    message = json.loads(line)
    properties = pika.BasicProperties(delivery_mode=2, **message.get("properties", {}))
    try:
        channel.basic_publish(message["exchange"], message["key"], message["body"], properties)
    except pika.exceptions.NackError:
        # A full queue refuses; whether it does is the test's business.
        pass
connection.close()
