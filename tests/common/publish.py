"""Publishes what standard input says, one JSON object a line, past the router."""

import json
import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
for line in sys.stdin:
    message = json.loads(line)
    properties = pika.BasicProperties(delivery_mode=2, **message.get("properties", {}))
    channel.basic_publish(message["exchange"], message["key"], message["body"], properties)
# The broker has read everything once it has answered.
channel.exchange_declare("amq.topic", passive=True)
connection.close()
