"""Publishes messages whose headers are nested too deeply to be read. Brokers deliver them slowly."""

import sys

import pika
import pika.data

DEPTH = 5_000


class Encoded(bytes):
    """An encoded value with its type."""


encode_value = pika.data.encode_value


def encode(pieces, value):
    if not isinstance(value, Encoded):
        return encode_value(pieces, value)
    pieces.append(value)
    return len(value)


pika.data.encode_value = encode
deep = b"V"
for _ in range(DEPTH):
    deep = b"A" + len(deep).to_bytes(4, "big") + deep

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
for line in sys.stdin:
    exchange, key, count = line.split()
    for _ in range(int(count)):
        properties = pika.BasicProperties(delivery_mode=2, headers={"deep": Encoded(deep)})
        channel.basic_publish(exchange, key, b"body", properties)
# The broker answers this after it has read all messages.
channel.exchange_declare("amq.topic", passive=True)
connection.close()
