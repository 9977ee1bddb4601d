"""Celery with delays that wait in RabbitMQ, in the exchanges and queues of delayline."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.result import AsyncResult
from celery.utils import uuid
from celery.utils.time import maybe_make_aware
from kombu import Queue

__all__ = ["Delayline", "DelaylineTask", "routing_key"]

LONGEST = 2**28 - 1
HANDLE = re.compile(r"delay(?:\.[01]{4}){7}\.(?P<app>.+)\.~\.[A-Za-z0-9_-]{1,64}")


def routing_key(seconds: float, app_key: str, recall_id: str | None = None) -> str:
    """The key of a message that is due in so many seconds, rounded up. With an id, it is the handle for a recall."""
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"a delay is 0 to {LONGEST:,} seconds, not {seconds:,}")
    key = "delay." + f"{math.ceil(seconds):034_b}".replace("_", ".") + "." + app_key
    return key if recall_id is None else f"{key}.~.{recall_id}"


class DelaylineTask(Task):
    """A task that can be parked."""

    def park(self, reason: object) -> Ignore:
        """Parks this task for good, with a reason: `raise self.park("the card is stolen")`."""
        self.signature_from_request(delayline_failure=str(reason)).apply_async()
        return Ignore(str(reason))


class Delayline(Celery):
    """A Celery application that sends every task to a set, and receives from a queue that exists.

    `countdown`, `eta`, `retry()` and chains wait in the broker. `apply_async` also takes `app_key`, for a task of
    another application, and `recall_id`; the `handle` of its result recalls the message.
    """

    task_cls = DelaylineTask

    def __init__(
        self, main: str, *, app_key: str, queue: str | None = None, delay_exchange: str = "delay", **kwargs: Any
    ) -> None:
        super().__init__(main, **kwargs)
        self.app_key = app_key
        self.delay_exchange = delay_exchange
        queue = queue or app_key
        self.conf.update(
            # The queue exists, and we may not declare or bind it.
            task_queues=[Queue(queue, no_declare=True, queue_arguments={"x-queue-type": "quorum"})],
            task_default_queue=queue,
            task_create_missing_queues=False,
            # These features would declare queues of their own.
            worker_enable_remote_control=False,
            task_ignore_result=True,
            # Acknowledged when done, rejected when failed.
            task_acks_late=True,
            task_acks_on_failure_or_timeout=False,
            task_reject_on_worker_lost=True,
            broker_transport_options={"confirm_publish": True},
        )

    def send_task(
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: float | None = None,
        eta: datetime | str | None = None,
        *,
        expires: float | datetime | str | None = None,
        app_key: str | None = None,
        recall_id: str | None = None,
        delayline_failure: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Like Celery's, and returns once the broker has stored the message."""
        # Headers that the broker and delayline added to a received message are not sent again.
        own = {name: value for name, value in (options.pop("headers", None) or {}).items() if not _foreign(name)}
        if expires is not None:
            # As a property, the broker would count it from now, and shorten the delay.
            own["expires"] = self._time(expires).isoformat()
        app_key = app_key or self.app_key
        if delayline_failure is None:
            seconds = (self._time(eta) - self.now()).total_seconds() if eta else countdown or 0
            exchange, key = self.delay_exchange, routing_key(max(0, seconds), app_key, recall_id)
        else:
            exchange, key = self.delay_exchange + ".parked", app_key
            own["delayline-failure"] = delayline_failure
            own["delayline-last-failed"] = int(self.now().timestamp() * 1000)
        for name_of in ("queue", "exchange_type", "delivery_mode"):
            options.pop(name_of, None)
        options.update(exchange=exchange, routing_key=key, declare=[], mandatory=True, headers=own)
        options["message_id"] = options["task_id"] = options.get("task_id") or uuid()
        result = super().send_task(name, args, kwargs, **options)
        result.handle = key
        return result

    def recall(self, handle: str) -> None:
        """Recalls a message that has a `recall_id` and is not due yet."""
        found = HANDLE.fullmatch(handle)
        if found is None:
            raise ValueError(f"not the handle of a message with an id: {handle!r}")
        app, exchange = found["app"], self.delay_exchange
        with self.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_bind(f"{exchange}.recalled.{app}", f"{exchange}.recall.{app}", handle)

    def _time(self, time: float | datetime | str) -> datetime:
        if isinstance(time, str):
            time = datetime.fromisoformat(time)
        if isinstance(time, datetime):
            aware: datetime = maybe_make_aware(time, self.timezone)
            return aware
        now: datetime = self.now()
        return now + timedelta(seconds=time)


def _foreign(header: str) -> bool:
    return header.startswith(("delayline-", "x-")) or header in ("CC", "BCC")
