"""Common ways to build retries by hand, and the messages that each of them loses.
Run it on a broker of its own.

    python by_hand.py amqp://guest:guest@localhost/
"""

import sys
import time

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()


def queue(name, **arguments):
    channel.queue_declare(name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()})


def take(name, count, patience=15):
    """Messages, each with the time of its arrival."""
    found, until = [], time.time() + patience
    while len(found) < count and time.time() < until:
        method, properties, _ = channel.basic_get(name, auto_ack=True)
        if method:
            found.append((time.time(), method, properties))
        else:
            time.sleep(0.005)
    return found


def fixed():
    queue("shop")
    queue("shop.retry", x_message_ttl=500, x_dead_letter_exchange="", x_dead_letter_routing_key="shop")
    channel.exchange_declare("orders", "topic")
    channel.queue_bind("shop", "orders", "order.*")
    channel.basic_publish("orders", "order.created", b"")
    [(_, first, _)] = take("shop", 1)
    channel.basic_publish("", "shop.retry", b"")
    [(_, second, _)] = take("shop", 1)
    print(f"fixed: published with `{first.routing_key}`, came back with `{second.routing_key}`")


def queue_per_ttl():
    # The queue of the next step was forgotten; there is no error.
    for number in range(100):
        channel.basic_publish("", "shop.retry.64s", str(number).encode())
    print(f"queue per TTL: of 100 retries into a queue that is missing, {len(take('shop', 100, 3))} came back")


def ttl_per_message():
    queue("growing", x_dead_letter_exchange="", x_dead_letter_routing_key="shop")
    started = time.time()
    for seconds in (10, 1):
        channel.basic_publish("", "growing", b"", pika.BasicProperties(expiration=str(seconds * 1000), message_id=str(seconds)))
    for came, _, properties in take("shop", 2):
        late = came - started - int(properties.message_id)
        print(f"TTL per message: due after {properties.message_id} s, {late:.1f} s late")


def queue_per_application():
    queue("shop.5m", x_message_ttl=300_000)
    try:
        other = connection.channel()
        other.queue_declare("shop.5m", durable=True, arguments={"x-message-ttl": 600_000})
    except pika.exceptions.ChannelClosedByBroker as error:
        print(f"wait queues per application: another delay is refused with {error.reply_code}")


def shared_wait_queues():
    channel.exchange_declare("dispatch", "topic")
    for app in ("orders", "eu.orders"):
        queue(app)
        channel.queue_bind(app, "dispatch", "#." + app)
    for _ in range(100):
        channel.basic_publish("dispatch", "0.1.0.eu.orders", b"")
    print(f"shared wait queues: of 100 messages for `eu.orders`, `orders` received {len(take('orders', 100, 3))}")


def busy_queue():
    queue("busy")
    channel.basic_publish("", "busy", b"")
    due, rounds = time.time() + 5, 0
    while time.time() < due:
        method, _, _ = channel.basic_get("busy")
        if method:
            channel.basic_nack(method.delivery_tag, requeue=True)
            rounds += 1
    print(f"busy queue: one message that waits 5 s was delivered {rounds} times")


def expiry():
    queue("wait", x_message_ttl=500, x_dead_letter_exchange="", x_dead_letter_routing_key="shop")
    channel.basic_publish("", "wait", b"", pika.BasicProperties(expiration="60000"))
    [(_, _, properties)] = take("shop", 1)
    print(f"expiry: `expiration` was 60000, and is {properties.expiration} after one wait")


for approach in (fixed, queue_per_ttl, ttl_per_message, queue_per_application, shared_wait_queues, busy_queue, expiry):
    approach()
connection.close()
