"""A tenant with valid credentials that tries to do harm. Each line of standard input names
an attempt, and each answer is a line of JSON. The password is in the first line, so that
no process list shows it."""

import base64
import json
import logging
import sys
import urllib.error
import urllib.request

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

logging.disable(logging.CRITICAL)
setup = json.loads(sys.stdin.readline())
OWN, VICTIM = setup["own"], setup["victim"]  # app key and queue are the same word
BITS = "0000." * 7


def connect(vhost=setup["vhost"]):
    credentials = pika.PlainCredentials(setup["user"], setup["password"])
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", setup["port"], vhost, credentials, client_properties={})
    )


def key(app, seconds=0):
    return "delay." + f"{seconds:034_b}".replace("_", ".") + "." + app


def pattern(app):
    return "delay." + "*." * 7 + app


def publish(exchange, routing_key, body=b"harm", mandatory=False, **properties):
    def attempt(channel):
        channel.confirm_delivery()
        try:
            channel.basic_publish(exchange, routing_key, body, pika.BasicProperties(**properties), mandatory)
        except pika.exceptions.UnroutableError:
            pass
        except pika.exceptions.NackError:
            pass

    return attempt


def call(method, *arguments, **named):
    return lambda channel: getattr(channel, method)(*arguments, **named)


def flood(channel):
    channel.confirm_delivery()
    for _ in range(500):
        channel.basic_publish("delay", key(OWN), b"x" * 1000)


def again(channel):
    channel.confirm_delivery()
    earlier = [{"queue": "delay.level.00", "reason": "expired", "count": 1, "exchange": "delay", "routing-keys": ["a"]}]
    properties = pika.BasicProperties(headers={"x-death": earlier})
    for _ in range(40):
        channel.basic_publish("delay", key(OWN, 17), b"harm", properties)


def hoard(channel):
    channel.basic_qos(prefetch_count=0)
    channel.basic_consume(OWN, lambda *_: None)


def connections(_):
    for connection in [connect() for _ in range(20)]:
        connection.close()


def management(method, path, body=None):
    def attempt(_):
        word = base64.b64encode(f"{setup['user']}:{setup['password']}".encode()).decode()
        request = urllib.request.Request(
            f"{setup['management']}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Basic {word}", "content-type": "application/json"},
        )
        urllib.request.urlopen(request).close()

    return attempt


# A key for each of the three lowest levels, all of the tenant's own application.
COPIES = [key(OWN, 1 << level) for level in range(3)]
DEATH = [{"queue": "delay.level.00", "reason": "expired", "count": 7, "exchange": "delay", "routing-keys": ["x"]}]
STEAL = {"x-dead-letter-exchange": "delay", "x-dead-letter-routing-key": key(VICTIM)}
HOP = {"x-queue-type": "quorum", "x-message-ttl": 0, **STEAL}

RECALL, RECALLED = "delay.recall." + OWN, "delay.recalled." + OWN
RECALL_OF_VICTIM, RECALLED_OF_VICTIM = "delay.recall." + VICTIM, "delay.recalled." + VICTIM
THROUGH_OF_VICTIM = "delay.through." + VICTIM
JOURNAL, JOURNAL_OF_VICTIM = "delay.journal." + OWN, "delay.journal." + VICTIM
HANDLE = key(VICTIM, 3600) + ".~.theirs"


def read_journal(queue):
    def attempt(channel):
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, lambda *_: None, arguments={"x-stream-offset": "first"})

    return attempt


def own_handle():
    return key(OWN, 3600) + ".~.mine"


ATTEMPTS = {
    "publish another application's key": publish("delay", key(VICTIM)),
    "publish another application's key with a delay": publish("delay", key(VICTIM, 3600)),
    "publish a key that ends like its own": publish("delay", key("eu." + OWN)),
    "publish a key that begins like its own": publish("delay", key(OWN + ".eu")),
    "publish a key of wildcards": publish("delay", "delay." + "*." * 7 + OWN),
    "publish a truncated key": publish("delay", "delay." + "0000." * 6 + OWN),
    "publish a key with a bit too many": publish("delay", "delay.1" + "0000." * 7 + OWN),
    "publish a key of 255 bytes that begins with its own": publish("delay", key(OWN).ljust(255, "x")),
    "publish its own key with a line feed at the end": publish("delay", key(OWN) + "\n"),
    "publish a longer delay than it may": publish("delay", key(OWN, 3601)),
    "publish another key in the header CC": publish("delay", key(OWN), headers={"CC": [key(VICTIM)]}),
    "publish another key in the header BCC": publish("delay", key(OWN), headers={"BCC": [key(VICTIM)]}),
    "multiply its messages with keys of its own in the header CC": publish(
        "delay", key(OWN, 1), headers={"CC": COPIES}
    ),
    "multiply its messages with keys of its own in the header BCC": publish(
        "delay", key(OWN, 1), headers={"BCC": COPIES}
    ),
    "publish to dispatch, past all delays": publish("delay.dispatch", key(VICTIM)),
    "publish to a level": publish("delay.level.00", key(VICTIM)),
    "publish to the default exchange": publish("", VICTIM),
    "publish to the unroutable exchange": publish("delay.unroutable", "x"),
    "publish another key to the retry exchange": publish("delay.retry", VICTIM),
    "publish another key to the parked exchange": publish("delay.parked", VICTIM),
    "publish in another user's name (`user_id`)": publish("delay", key(OWN), user_id="guest"),
    "publish with a forged `x-death`": publish("delay", key(OWN), headers={"x-death": DEATH, "x-delivery-count": 99}),
    # The messages stay in a level that no other attempt uses.
    "publish 40 messages with the `x-death` of an earlier journey": again,
    "publish with forged `delayline-` headers": publish(
        "delay",
        key(OWN),
        headers={
            "delayline-exchange": "delay.dispatch",
            "delayline-routing-key": key(VICTIM),
            "delayline-due": 0,
            "delayline-attempt": -1,
        },
    ),
    "publish with `expiration`": publish("delay", key(OWN, 1), expiration="0"),
    "publish with the highest priority": publish("delay", key(OWN, 1), priority=255),
    "publish transient messages": publish("delay", key(OWN), delivery_mode=1),
    "publish as `mandatory`": publish("delay", key(OWN), mandatory=True),
    "publish 17 MiB in one message": publish("delay", key(OWN), body=b"x" * (17 << 20)),
    "flood its own queue": flood,
    "consume a level": call("basic_consume", "delay.level.00", lambda *_: None),
    "get a message from a level": call("basic_get", "delay.level.00"),
    "consume another application's queue": call("basic_consume", VICTIM, lambda *_: None),
    "consume the unroutable queue": call("basic_consume", "delay.unroutable", lambda *_: None),
    "consume the retry queue": call("basic_consume", "delay.retry", lambda *_: None),
    "consume the parked queue": call("basic_consume", "delay.parked", lambda *_: None),
    "consume its own queue and acknowledge nothing": hoard,
    "consume its own queue exclusively": call("basic_consume", OWN, lambda *_: None, exclusive=True),
    "purge a level": call("queue_purge", "delay.level.00"),
    "purge another application's queue": call("queue_purge", VICTIM),
    "delete a level": call("queue_delete", "delay.level.00"),
    "delete the dispatch exchange": call("exchange_delete", "delay.dispatch"),
    "delete another application's queue": call("queue_delete", VICTIM),
    "delete its own queue": call("queue_delete", OWN),
    "bind its queue under another application's key": call("queue_bind", OWN, "delay.dispatch", pattern(VICTIM)),
    "bind its queue under every key": call("queue_bind", OWN, "delay.dispatch", "#"),
    "bind its queue to a level": call("queue_bind", OWN, "delay.level.00", "#"),
    "unbind another application": call("queue_unbind", VICTIM, "delay.dispatch", pattern(VICTIM)),
    "unbind a level": call("queue_unbind", "delay.level.00", "delay", "#"),
    "bind the entry to dispatch, so that messages go round": call(
        "exchange_bind", "delay", "delay.dispatch", pattern(OWN)
    ),
    "bind the entry to an exchange of the broker's": call("exchange_bind", "delay", "amq.topic", "#"),
    "declare a queue that dead-letters another key to the entry": call(
        "queue_declare", "harm", durable=True, arguments=HOP
    ),
    "declare its own queue again with a dead-letter exchange": call(
        "queue_declare", OWN, durable=True, arguments={"x-queue-type": "quorum", **STEAL}
    ),
    "declare a queue for its connection alone": call("queue_declare", "", exclusive=True),
    "declare an exchange with dispatch as its alternate": call(
        "exchange_declare", "harm", "fanout", durable=True, arguments={"alternate-exchange": "delay.dispatch"}
    ),
    "declare the entry again as another type": call("exchange_declare", "delay", "fanout", durable=True),
    "recall another application's message": call("queue_bind", RECALLED_OF_VICTIM, RECALL_OF_VICTIM, HANDLE),
    "undo another application's recall": call("queue_unbind", RECALLED_OF_VICTIM, RECALL_OF_VICTIM, HANDLE),
    "recall another application's message into its own recalled queue": call("queue_bind", RECALLED, RECALL_OF_VICTIM, HANDLE),
    "recall another application's message into its own queue": call("queue_bind", OWN, RECALL_OF_VICTIM, HANDLE),
    "recall another application's message into the other's queue": call("queue_bind", VICTIM, RECALL_OF_VICTIM, HANDLE),
    "send another application's recalled messages into the levels": call("exchange_bind", "delay", RECALL_OF_VICTIM, HANDLE),
    "send its own recalled messages to another application": call("queue_bind", VICTIM, RECALL, own_handle()),
    "fill another application's recalled queue with its own messages": call("queue_bind", RECALLED_OF_VICTIM, RECALL, own_handle()),
    "pass its own recalled messages to another application's recalls": call("exchange_bind", RECALL_OF_VICTIM, RECALL, own_handle()),
    "pass its own recalled messages to dispatch": call("exchange_bind", "delay.dispatch", RECALL, own_handle()),
    "bind its recalled queue to dispatch under another application's key": call("queue_bind", RECALLED, "delay.dispatch", pattern(VICTIM) + ".~.*"),
    "bind its exchange for recalls to dispatch under another application's key": call("exchange_bind", RECALL, "delay.dispatch", pattern(VICTIM) + ".~.*"),
    "bind its recalled queue to a level": call("queue_bind", RECALLED, "delay.level.00", "#"),
    "bind its recalled queue to what passes to another application": call("queue_bind", RECALLED, THROUGH_OF_VICTIM, ""),
    "unbind what passes to another application": call("queue_unbind", VICTIM, THROUGH_OF_VICTIM, ""),
    "unbind another application's recalls from dispatch": call("exchange_unbind", RECALL_OF_VICTIM, "delay.dispatch", pattern(VICTIM) + ".~.*"),
    "consume what another application has recalled": call("basic_consume", RECALLED_OF_VICTIM, lambda *_: None),
    "get what another application has recalled": call("basic_get", RECALLED_OF_VICTIM),
    "purge what another application has recalled": call("queue_purge", RECALLED_OF_VICTIM),
    "delete another application's recalled queue": call("queue_delete", RECALLED_OF_VICTIM),
    "delete another application's exchange for recalls": call("exchange_delete", RECALL_OF_VICTIM),
    "delete its own exchange for recalls": call("exchange_delete", RECALL),
    "publish another application's key with an id": publish("delay", HANDLE),
    "publish past all delays to another application's exchange for recalls": publish(RECALL_OF_VICTIM, HANDLE),
    "publish past all delays to what passes to another application": publish(THROUGH_OF_VICTIM, HANDLE),
    "publish past all delays to what passes to itself": publish("delay.through." + OWN, own_handle()),
    "publish its own key with an id of wildcards": publish("delay", key(OWN) + ".~.*"),
    "publish its own key with an id of 65 letters": publish("delay", key(OWN) + ".~." + "x" * 65),
    "declare another application's exchange for recalls with another alternate": call(
        "exchange_declare", RECALL_OF_VICTIM, "direct", durable=True, arguments={"alternate-exchange": "delay"}
    ),
    "declare another application's recalled queue again with other limits": call(
        "queue_declare", RECALLED_OF_VICTIM, durable=True, arguments={"x-queue-type": "quorum", "x-max-length": 1}
    ),
    "read another application's journal": read_journal(JOURNAL_OF_VICTIM),
    "publish to another application's journal past the entry": publish("", JOURNAL_OF_VICTIM),
    "purge another application's journal": call("queue_purge", JOURNAL_OF_VICTIM),
    "delete another application's journal": call("queue_delete", JOURNAL_OF_VICTIM),
    "delete its own journal": call("queue_delete", JOURNAL),
    "bind its queue like another application's journal": call("queue_bind", OWN, "delay", pattern(VICTIM)),
    "bind its journal to what is due": call("queue_bind", JOURNAL, "delay.dispatch", "#"),
    "send its recalled messages to another application's journal": call(
        "queue_bind", JOURNAL_OF_VICTIM, RECALL, own_handle()
    ),
    "unbind another application's journal": call("queue_unbind", JOURNAL_OF_VICTIM, "delay", pattern(VICTIM)),
    "declare another application's journal again with other limits": call(
        "queue_declare", JOURNAL_OF_VICTIM, durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1s"}
    ),
    "ask how long another application's queue is": call("queue_declare", VICTIM, passive=True),
    "open 20 connections": connections,
    "log in to another vhost": lambda _: connect("/").close(),
    "read the management API": management("GET", "overview"),
    "set a policy": management(
        "PUT",
        f"policies/{setup['vhost']}/harm",
        {"pattern": ".*", "definition": {"max-length": 1}, "apply-to": "queues"},
    ),
    "give itself permissions": management(
        "PUT",
        f"permissions/{setup['vhost']}/{setup['user']}",
        {"configure": ".*", "write": ".*", "read": ".*"},
    ),
    # The last attempt: if the broker does not resist it, all delays of the node end.
    "publish with an `x-death` that no broker writes": publish("delay", key(OWN, 1), headers={"x-death": [1, 2]}),
}


def attempt(connection, name):
    try:
        channel = connection.channel()
        ATTEMPTS[name](channel)
        # The broker answers this request after it has read requests without an answer.
        channel.basic_qos(prefetch_count=1)
        channel.close()
        return None
    except (ChannelClosedByBroker, ConnectionClosedByBroker) as refusal:
        return f"{refusal.reply_code} {refusal.reply_text}"
    except urllib.error.HTTPError as refusal:
        return f"HTTP {refusal.code}"
    except AMQPConnectionError as refusal:
        return f"login: {refusal!r}"


print(json.dumps(list(ATTEMPTS)), flush=True)
connection = connect()
for line in sys.stdin:
    if not connection.is_open:
        connection = connect()
    print(json.dumps(attempt(connection, line.strip())), flush=True)
