"""Publishes a message with a deeply nested header to the retry exchange."""

import struct
import sys

import pika
import pika.data
import pika.spec

heads, size = [], 1
for _ in range(int(sys.argv[2])):
    heads.append(b"A" + struct.pack(">I", size))
    size += 5
table = b"\x01n" + b"".join(reversed(heads)) + b"V"


def encode_table(pieces, value):
    """Replaces pika's own encoder, which would recurse too deeply."""
    if value != {"n": "deep"}:
        return original(pieces, value)
    pieces.append(struct.pack(">I", len(table)) + table)
    return 4 + len(table)


original = pika.data.encode_table
pika.data.encode_table = pika.spec.data.encode_table = encode_table
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
properties = pika.BasicProperties(message_id="deep", delivery_mode=2, headers={"n": "deep"})
channel.basic_publish("delay.retry", "noisy", b"body", properties, mandatory=True)
connection.close()
