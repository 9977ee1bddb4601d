"""On a broker of its own: `delayline dev --apps tests/apps.toml --unit-ms 10 -- python -m pytest`."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
from amqp.exceptions import AccessRefused
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject

from delayline_celery import Delayline, routing_key

PATIENCE = 60
came: queue.Queue[Any] = queue.Queue()
app = Delayline(
    "tasks",
    broker=os.environ["AMQP_URL"],
    app_key="billing",
    queue="billing-in",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(bind=True)  # type: ignore[untyped-decorator]
def note(self: Any, text: str) -> str:
    came.put((text, self.request.id))
    return text


@app.task(bind=True)  # type: ignore[untyped-decorator]
def once(self: Any, text: str, how: str) -> None:
    """Fails the first time, in the given way."""
    before = self.request.get("delayline-attempt", 0) + self.request.retries
    came.put((how, before))
    if before:
        return
    if how == "fail":
        raise RuntimeError(text)
    if how == "reject":
        raise Reject(text, requeue=False)
    if how == "retry":
        raise self.retry(countdown=3)
    raise self.park(text)


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    with start_worker(app, pool="solo", perform_ping_check=False):
        yield


@pytest.fixture
def admin() -> Iterator[Any]:
    with kombu.Connection(os.environ["DELAYLINE_URL"]) as connection:
        yield connection.channel()


def get(channel: Any, name: str) -> Any:
    for _ in range(PATIENCE * 10):
        message = channel.basic_get(name, no_ack=True)
        if message is not None:
            return message
        time.sleep(0.1)
    raise AssertionError(f"{name} stays empty")


def test_a_delay_is_rounded_up_and_has_a_range() -> None:
    assert routing_key(89.5, "billing") == "delay.0000.0000.0000.0000.0000.0101.1010.billing"
    assert routing_key(0, "a.b", "x-1") == "delay" + ".0000" * 7 + ".a.b.~.x-1"
    for wrong in (-1, 2**28, float("nan")):
        with pytest.raises(ValueError):
            routing_key(wrong, "billing")


def test_tasks_are_delayed_in_all_ways_that_celery_has() -> None:
    eta = datetime.now(timezone.utc) + timedelta(seconds=5)
    sent = [
        note.delay("now"),
        note.apply_async(["countdown"], countdown=2.5),
        note.apply_async(["eta"], eta=eta),
        note.apply_async(["late eta"], eta=eta - timedelta(days=1)),
        note.apply_async(["expires"], countdown=100, expires=3600),
        app.send_task("test_delayline_celery.note", ["by name"], countdown=1),
    ]
    assert {came.get(timeout=PATIENCE)[1] for _ in sent} == {result.id for result in sent}
    assert sent[1].handle == routing_key(3, "billing")


def test_a_chain_goes_on() -> None:
    (note.s("first") | note.si("second").set(countdown=2)).apply_async(countdown=1)
    assert [came.get(timeout=PATIENCE)[0] for _ in range(2)] == ["first", "second"]


@pytest.mark.parametrize("how", ["fail", "reject", "retry"])
def test_what_fails_comes_back(how: str) -> None:
    once.delay("the bank is closed", how)
    assert [came.get(timeout=PATIENCE) for _ in range(2)] == [(how, 0), (how, 1)]


def test_what_is_parked_does_not_come_back(admin: Any) -> None:
    result = once.delay("the card is stolen", "park")
    assert came.get(timeout=PATIENCE) == ("park", 0)
    parked = get(admin, "delay.parked")
    assert parked.delivery_info["routing_key"] == "billing"
    assert parked.headers["delayline-failure"] == "the card is stolen"
    assert time.time() - parked.headers["delayline-last-failed"] / 1000 < PATIENCE
    assert (parked.headers["id"], parked.headers["task"]) == (result.id, once.name)
    # RabbitMQ 3.10 counts the first delivery, too.
    assert parked.headers.pop("x-delivery-count", 0) == 0
    assert not [name for name in parked.headers if name.startswith("x-")]
    note.delay("after it")
    assert came.get(timeout=PATIENCE)[0] == "after it"


def test_what_the_broker_refuses_is_an_error() -> None:
    with pytest.raises(AccessRefused):
        note.apply_async(["not ours"], app_key="stranger")
    note.delay("the next one")
    assert came.get(timeout=PATIENCE)[0] == "the next one"


def test_a_recalled_task_does_not_run(admin: Any) -> None:
    result = note.apply_async(["recalled"], countdown=300, recall_id="invoice-17")
    app.recall(result.handle)
    recalled = get(admin, "delay.recalled.billing")
    assert recalled.headers["id"] == recalled.properties["message_id"] == result.id
    assert came.empty()
    for wrong in (result.handle[:-11], result.handle.replace(".0000", "", 1)):
        with pytest.raises(ValueError):
            app.recall(wrong)
