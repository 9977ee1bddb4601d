"""Declares Celery's layout with kombu itself, and prints its routing keys.

Arguments: the broker's URL, the length of a unit in milliseconds, and the queue of
the tasks. Standard input: the delays, as a JSON list.

Everything is kombu's own except the unit, because kombu uses whole seconds.
"""

import json
import sys

from kombu import Connection, Exchange, Queue
from kombu.transport import native_delayed_delivery as native

url, unit_ms, inbox = sys.argv[1], int(sys.argv[2]), sys.argv[3]


# A function instead of a subclass: kombu copies queues, and copies must not be scaled again.
def scaled_queue(name, queue_arguments):
    ttl = queue_arguments["x-message-ttl"] // 1000 * unit_ms
    return Queue(name, queue_arguments={**queue_arguments, "x-message-ttl": ttl})


with Connection(url) as connection:
    native.Queue = scaled_queue
    native.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    exchange = Exchange("celery", type="topic")
    queue = Queue(inbox, exchange, routing_key=inbox, queue_arguments={"x-queue-type": "quorum"})
    queue.bind(connection.channel()).declare()
    native.bind_queue_to_native_delayed_delivery_exchange(connection, queue)

delays = json.load(sys.stdin)
print(json.dumps({delay: native.calculate_routing_key(delay, inbox) for delay in delays}))
