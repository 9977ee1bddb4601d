"""Publishes unusual messages to the retry exchange."""

import sys

import pika
import pika.data

# pika reads and writes nested values by recursion.
sys.setrecursionlimit(100_000)
DEEP = 5_000



class Raw(str):
    """Text that is sent unchanged, even if it is not UTF-8."""

    def encode(self, *_):
        return super().encode("utf-8", "surrogateescape")


pika.data.as_bytes = lambda value: value if isinstance(value, bytes) else Raw(value).encode()

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
if sys.argv[2] == "check":
    found = {}
    for _ in range(13):
        method, properties, _ = channel.basic_get("delay.parked")
        found[properties.message_id] = (method.routing_key, properties)
    assert found["value"][1].headers["a"] == b"\xff" and found["value"][1].headers["b"] == "kept"
    assert found["value-last"][1].headers["zz"] == b"x\xff"
    assert found["nested"][1].headers["t"] == {"n": [b"\xff"]}
    assert found["property"][1].correlation_id == b"\xff" and found["property"][1].headers["b"] == "kept"
    assert found["cluster"][1].cluster_id == "obsolete"
    value, depth = found["deep"][1].headers["n"], 0
    while value:
        (value,), depth = value, depth + 1
    assert depth == DEEP
    # Closing returns the messages to the queue.
    connection.close()
    sys.exit()
channel.confirm_delivery()


def publish(name, key="aliens", body=b"body", exchange="delay.retry", **properties):
    properties = pika.BasicProperties(message_id=name, delivery_mode=2, **properties)
    channel.basic_publish(exchange, key, body, properties, mandatory=True)


publish("value", headers={"a": Raw("\udcff"), "b": "kept"})
publish("value-last", headers={"a": "kept", "zz": Raw("x\udcff")})
publish("nested", headers={"t": {"n": [Raw("\udcff")]}})
deep = []
for _ in range(DEEP):
    deep = [deep]
publish("deep", headers={"n": deep})
publish("name", headers={"\udcff": 1, "b": "kept"})
publish("property", correlation_id="\udcff", headers={"b": "kept"})
publish("cluster", cluster_id="obsolete")
publish("key", key="\udcff\udcfe")
publish("empty-key", key="")
publish("wild-key", key="a.*.#")
publish("long-key", key="x" * 255)
publish("many", headers={f"h{number:04}": f"v{number}" for number in range(1000)})
publish("large", body=b"\xab" * 10_000_000)
publish("huge-headers", headers={"h": "x" * 130_500})
publish("x-death", headers={"x-death": "not an array"})
publish("attempt", headers={"delayline-attempt": "many", "delayline-first-failed": -1})
publish("expires", headers={"delayline-expires": 1})
publish("user", user_id="guest")
publish("plain")
connection.close()
