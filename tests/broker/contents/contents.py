"""Publishes messages with any content that AMQP 0-9-1 can carry, without the checks of a client
library. Each line of standard input is JSON, and names an exchange, a key and a content. Each
answer is a line of JSON: null if the broker has confirmed the message, otherwise its refusal.
The first line of output lists the contents."""

import decimal
import json
import logging
import struct
import sys
import time
from datetime import datetime, timezone

import pika
import pika.data
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

logging.disable(logging.CRITICAL)
sys.setrecursionlimit(10_000)


class Raw(bytes):
    """An encoded value of a header: its type, then the rest."""


def encode_value(pieces, value, standard=pika.data.encode_value):
    if not isinstance(value, Raw):
        return standard(pieces, value)
    pieces.append(bytes(value))
    return len(value)


pika.data.encode_value = encode_value


def raw(kind, layout, value):
    return Raw(kind.encode() + struct.pack(">" + layout, value))


def text(content):
    return Raw(b"S" + struct.pack(">I", len(content)) + content)


def header(value, name="h"):
    return {"headers": {name: value}}


def death(queue, reason="expired"):
    now = datetime.fromtimestamp(int(time.time()), timezone.utc)
    entry = {"count": 1, "reason": reason, "queue": queue, "time": now, "exchange": "delay"}
    return header([{**entry, "routing-keys": ["a"]}], "x-death")


NOT_UTF_8 = b"\xff\xfe"
SIMPLE = {
    "bool": True,
    "int8": raw("b", "b", -8),
    "uint8": raw("B", "B", 200),
    "int16": raw("s", "h", -16_000),
    "uint16": raw("u", "H", 60_000),
    "int32": raw("I", "i", -1),
    "uint32": raw("i", "I", 4_000_000_000),
    "int64": raw("l", "q", -(2**63)),
    "float": raw("f", "f", 1.5),
    "double": raw("d", "d", -2.25),
    "text": "käse",
    "bytes": Raw(b"x" + struct.pack(">I", 3) + b"\x00\xff\x07"),
    "time": raw("T", "Q", 1_700_000_000),
    "nothing": None,
}
deep = 1
for _ in range(500):
    deep = {"deeper": deep}

# For each content: a name, whether it may end all dead-lettering (never, with a stream, or always),
# its properties, and other differences from a plain message.
CONTENTS = [
    ("nothing special", "never", {}),
    ("a header of each simple type", "never", {"headers": SIMPLE}),
    ("a header that is a table", "never", header(SIMPLE)),
    ("a header that is a list", "never", header(list(SIMPLE.values()))),
    ("a header that is a decimal", "stream", header(decimal.Decimal("12.34"))),
    ("a decimal in a table", "stream", header({"amount": decimal.Decimal("12.34")})),
    ("a decimal in a header `x-…`", "stream", header(decimal.Decimal("12.34"), "x-amount")),
    ("a header NaN", "stream", header(raw("d", "d", float("nan")))),
    ("a header Infinity", "stream", header(raw("d", "d", float("inf")))),
    ("a NaN in a list", "stream", header([raw("d", "d", float("nan"))])),
    ("a header whose text is not UTF-8", "stream", header(text(NOT_UTF_8))),
    ("a header whose name is not UTF-8", "stream", header(1, NOT_UTF_8)),
    ("a header whose name has 255 bytes", "stream", header(1, "n" * 255)),
    ("a header with the latest time", "stream", header(raw("T", "Q", 2**64 - 1))),
    ("`x-stream-filter-value`: text", "never", header("eu", "x-stream-filter-value")),
    ("`x-stream-filter-value`: 300 bytes", "stream", header("e" * 300, "x-stream-filter-value")),
    ("`x-stream-filter-value`: 70,000 bytes", "stream", header("e" * 70_000, "x-stream-filter-value")),
    ("`x-stream-filter-value`: a number", "stream", header(5, "x-stream-filter-value")),
    ("`x-stream-filter-value`: true", "stream", header(True, "x-stream-filter-value")),
    ("`x-stream-filter-value`: nothing", "stream", header(None, "x-stream-filter-value")),
    ("`x-stream-filter-value`: a list", "stream", header(["eu"], "x-stream-filter-value")),
    ("`x-stream-filter-value`: not UTF-8", "stream", header(text(NOT_UTF_8), "x-stream-filter-value")),
    ("another header `x-…`: a table", "stream", header(SIMPLE, "x-table")),
    ("`x-amqp-1.0-properties`: text", "stream", header("y", "x-amqp-1.0-properties")),
    ("`x-amqp-1.0-app-properties`: text", "stream", header("y", "x-amqp-1.0-app-properties")),
    ("`x-amqp-1.0-message-annotations`: text", "stream", header("y", "x-amqp-1.0-message-annotations")),
    ("`x-amqp-1.0-footer`: text", "stream", header("y", "x-amqp-1.0-footer")),
    ("`type`: `amqp-1.0`", "stream", {"type": "amqp-1.0"}),
    ("`type`: not UTF-8", "stream", {"type": NOT_UTF_8}),
    ("`reply_to`: not UTF-8", "stream", {"reply_to": NOT_UTF_8}),
    ("`message_id`: not UTF-8", "stream", {"message_id": NOT_UTF_8}),
    ("`message_id`: almost a UUID", "stream", {"message_id": "urn:uuid:not-one"}),
    ("`correlation_id`: not UTF-8", "stream", {"correlation_id": NOT_UTF_8}),
    ("`content_type`: not UTF-8", "stream", {"content_type": NOT_UTF_8}),
    ("`content_encoding`: not UTF-8", "stream", {"content_encoding": NOT_UTF_8}),
    ("`app_id`: not UTF-8", "stream", {"app_id": NOT_UTF_8}),
    ("`timestamp`: the latest", "stream", {"timestamp": 2**64 - 1}),
    ("`priority`: 255", "never", {"priority": 255}),
    ("`expiration`: 5 s", "never", {"expiration": "5000"}),
    ("`expiration`: no number", "never", {"expiration": "5s"}),
    ("`user_id`: another user's", "never", {"user_id": "another"}),
    ("headers of 100 kB", "stream", header("h" * 100_000)),
    ("headers nested 500 deep", "stream", header(deep)),
    ("a body of 1 MB", "never", {}, {"body": b"b" * 1_000_000}),
    ("no body", "never", {}, {"body": b""}),
    ("`CC`: a key of another application", "never", {}, {"copy": "CC"}),
    ("`BCC`: a key of another application", "never", {}, {"copy": "BCC"}),
    ("`CC`: no list", "never", header("a", "CC")),
    ("`x-delivery-count`: text", "stream", header("many", "x-delivery-count")),
    ("`x-opt-delivery-time`: in a year", "stream", header(int(time.time() + 31_536_000) * 1000, "x-opt-delivery-time")),
    ("`x-opt-deaths`: a list of numbers", "stream", header([1], "x-opt-deaths")),
    ("`x-death` of a queue it does not return to", "never", death("elsewhere")),
    ("`x-death` that no broker writes", "always", header([1, 2], "x-death")),
    ("`x-death` of its first journey, sent again", "stream", death("delay.level.00"), {"units": 3}),
]


class Publisher:
    def __init__(self, url):
        self.url = url
        self.connection = None

    def channel(self):
        if self.connection is None or not self.connection.is_open:
            self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
            self.opened = None
        if self.opened is None or not self.opened.is_open:
            self.opened = self.connection.channel()
            self.opened.confirm_delivery()
        return self.opened

    def publish(self, exchange, key, properties, body):
        properties = pika.BasicProperties(delivery_mode=2, **properties)
        try:
            self.channel().basic_publish(exchange, key, body, properties)
        except NackError:
            return "it did not confirm"
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            return f"{error.reply_code} {error.reply_text}"


publisher = Publisher(sys.argv[1])
print(
    json.dumps(
        [
            {"name": name, "may_end": may_end, "units": more.get("units", 1)}
            for name, may_end, _, more in (each if len(each) == 4 else (*each, {}) for each in CONTENTS)
        ]
    ),
    flush=True,
)
for line in sys.stdin:
    wanted = json.loads(line)
    _, _, properties, more = (*CONTENTS[wanted["content"]], {})[:4]
    if "copy" in more:
        properties = header([".".join(wanted["key"].split(".")[:8]) + ".another"], more["copy"])
    answer = publisher.publish(wanted["exchange"], wanted["key"], properties, more.get("body", b"x"))
    print(json.dumps(answer), flush=True)
