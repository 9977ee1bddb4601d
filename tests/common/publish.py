"""Publishes the messages of standard input, each a line of JSON, without the router."""

import json
import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
# A quorum queue may lose unconfirmed messages when the channel is closed.
channel.confirm_delivery()
for line in sys.stdin:
    message = json.loads(line)
    properties = pika.BasicProperties(delivery_mode=2, **message.get("properties", {}))
    try:
        channel.basic_publish(message["exchange"], message["key"], message["body"], properties)
    except pika.exceptions.NackError:
        # A full queue refuses messages. The test checks that itself.
        pass
connection.close()
