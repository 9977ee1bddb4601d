"""On a broker of its own: `delayline dev --apps tests/apps.toml --unit-ms 10 -- python -m pytest`."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pika
import pytest
from dramatiq.middleware import CurrentMessage, Retries
from pika.exceptions import ChannelClosedByBroker

from delayline_dramatiq import DelaylineBroker, routing_key

PATIENCE = 60
came: queue.Queue[Any] = queue.Queue()
broker = DelaylineBroker(
    url=os.environ["AMQP_URL"],
    app_key="billing",
    queue="billing-in",
    middleware=[Retries(max_retries=0), CurrentMessage()],
)
dramatiq.set_broker(broker)


class Stolen(Exception):
    pass


@dramatiq.actor
def note(text: str) -> None:
    came.put(text)


@dramatiq.actor(throws=Stolen)
def fails(text: str, times: int, final: bool) -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None
    tried = [text, message.message_id, message.options.get("retries", 0)]
    came.put(tried)
    if seen.count(text) < times:
        seen.append(text)
        raise Stolen("the card is stolen") if final else RuntimeError("the bank is closed")


@dramatiq.actor(max_retries=1, min_backoff=2000, max_backoff=3000)
def retried(text: str) -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None
    came.put((text, message.options.get("retries", 0)))
    if "retries" not in message.options:
        raise RuntimeError("the bank is closed")


seen: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    yield
    worker.stop()


@pytest.fixture
def admin() -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(os.environ["DELAYLINE_URL"])) as connection:
        yield connection.channel()


def get(channel: Any, name: str) -> Any:
    for _ in range(PATIENCE * 10):
        method, properties, _body = channel.basic_get(name, auto_ack=True)
        if method is not None:
            return method, properties
        time.sleep(0.1)
    raise AssertionError(f"{name} stays empty")


def test_a_delay_is_rounded_up_and_has_a_range() -> None:
    assert routing_key(89_001, "billing") == "delay.0000.0000.0000.0000.0000.0101.1010.billing"
    assert routing_key(0, "a.b", "x-1") == "delay" + ".0000" * 7 + ".a.b.~.x-1"
    for wrong in (-1000, 2**28 * 1000):
        with pytest.raises(ValueError):
            routing_key(wrong, "billing")


def test_messages_are_delayed() -> None:
    note.send("now")
    assert came.get(timeout=PATIENCE) == "now"
    sent = note.send_with_options(args=("later",), delay=2500)
    assert sent.options["handle"] == routing_key(3000, "billing")
    assert came.get(timeout=PATIENCE) == "later"


def test_what_fails_comes_back() -> None:
    sent = fails.send("rejected", 1, False)
    assert [came.get(timeout=PATIENCE)[1] for _ in range(2)] == [sent.message_id] * 2


def test_retries_of_dramatiq_wait_in_the_broker() -> None:
    retried.send("again")
    assert [came.get(timeout=PATIENCE) for _ in range(2)] == [("again", 0), ("again", 1)]


def test_what_an_actor_throws_is_parked(admin: Any) -> None:
    sent = fails.send("final", 9, True)
    assert came.get(timeout=PATIENCE)[0] == "final"
    method, properties = get(admin, "delay.parked")
    assert (method.routing_key, properties.message_id) == ("billing", sent.message_id)
    assert time.time() - properties.headers.pop("delayline-last-failed") / 1000 < PATIENCE
    # RabbitMQ 3.10 counts the first delivery, too.
    assert properties.headers.pop("x-delivery-count", 0) == 0
    assert properties.headers == {"delayline-failure": "Stolen: the card is stolen"}
    note.send("after it")
    assert came.get(timeout=PATIENCE) == "after it"


def test_what_the_broker_refuses_is_an_error() -> None:
    with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
        note.send_with_options(args=("not ours",), app_key="stranger")
    note.send("the next one")
    assert came.get(timeout=PATIENCE) == "the next one"


def test_a_recalled_message_does_not_come(admin: Any) -> None:
    sent = note.send_with_options(args=("recalled",), delay=300_000, recall_id="invoice-17")
    broker.recall(sent.options["handle"])
    _, properties = get(admin, "delay.recalled.billing")
    assert properties.message_id == sent.message_id and came.empty()
    with pytest.raises(ValueError):
        broker.recall(sent.options["handle"].replace(".0000", "", 1))
