"""A Dramatiq broker with delays that wait in RabbitMQ, in the exchanges and queues of delayline."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Any

import pika
from dramatiq import Message, Middleware
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.brokers.rabbitmq import RabbitmqBroker, _RabbitmqConsumer
from dramatiq.common import q_name
from dramatiq.errors import ConnectionClosed
from pika.exceptions import AMQPChannelError, AMQPConnectionError

__all__ = ["DelaylineBroker", "routing_key"]

LONGEST = 2**28 - 1
HANDLE = re.compile(r"delay(?:\.[01]{4}){7}\.(?P<app>.+)\.~\.[A-Za-z0-9_-]{1,64}")


def routing_key(milliseconds: float, app_key: str, recall_id: str | None = None) -> str:
    """The key of a message that is due after a delay, in whole seconds, rounded up. With an id, it is the handle."""
    seconds = math.ceil(milliseconds / 1000)
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"a delay is 0 to {LONGEST:,} seconds, not {seconds:,}")
    key = "delay." + f"{seconds:034_b}".replace("_", ".") + "." + app_key
    return key if recall_id is None else f"{key}.~.{recall_id}"


class DelaylineBroker(RabbitmqBroker):
    """Sends every message to a set, and receives from a queue that exists.

    `send_with_options` also takes `app_key`, for an actor of another application, and `recall_id`. The message that
    it returns has the option `handle`, which recalls it. What an actor `throws` is parked with the text of the error.
    """

    def __init__(
        self,
        *,
        url: str,
        app_key: str,
        queue: str | None = None,
        delay_exchange: str = "delay",
        middleware: list[Middleware] | None = None,
    ) -> None:
        super().__init__(url=url, middleware=middleware, confirm_delivery=True)
        self.app_key = app_key
        self.queue = queue or app_key
        self.delay_exchange = delay_exchange

    @property
    def consumer_class(self) -> type[_RabbitmqConsumer]:
        return _Consumer

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Consumes the one queue of the application, whatever queue the actors name."""
        return super().consume(self.queue, prefetch, timeout)

    def declare_queue(self, queue_name: str, *, ensure: bool = False) -> None:
        """Notes the name. The queue exists, and a queue for delays is not needed."""
        name = q_name(queue_name)
        if name not in self.queues and not ensure:
            self.emit_before("declare_queue", name)
            self.queues.add(name)
            self.emit_after("declare_queue", name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Returns once the broker has stored the message."""
        options = message.options
        app_key = str(options.get("app_key", self.app_key))
        key = routing_key(delay or 0, app_key, options.get("recall_id"))
        self.emit_before("enqueue", message, delay)
        self.publish(self.delay_exchange, key, message)
        self.emit_after("enqueue", message, delay)
        return message.copy(options={"handle": key})

    def publish(self, exchange: str, key: str, message: Message[Any], headers: dict[str, Any] | None = None) -> None:
        """Publishes a message, once more if the connection was lost. The broker's refusal is an error."""
        properties = pika.BasicProperties(delivery_mode=2, message_id=message.message_id, headers=headers)
        for last in (False, True):
            try:
                self.channel.basic_publish(exchange, key, message.encode(), properties, mandatory=True)
                return
            except AMQPChannelError:
                del self.channel
                raise
            except AMQPConnectionError as error:
                del self.connection
                if last:
                    raise ConnectionClosed(error) from None

    def recall(self, handle: str) -> None:
        """Recalls a message that has a `recall_id` and is not due yet."""
        found = HANDLE.fullmatch(handle)
        if found is None:
            raise ValueError(f"not the handle of a message with an id: {handle!r}")
        app, exchange = found["app"], self.delay_exchange
        try:
            self.channel.queue_bind(f"{exchange}.recalled.{app}", f"{exchange}.recall.{app}", handle)
        except AMQPChannelError:
            del self.channel
            raise


class _Consumer(_RabbitmqConsumer):
    broker: DelaylineBroker

    def nack(self, message: MessageProxy) -> None:
        error = message._exception
        if error is None or not isinstance(error, _thrown(self.broker, message)):
            return super().nack(message)
        broker = self.broker
        # A message is acknowledged once its copy is stored; until then, it is rejected and retried.
        try:
            reason, now = f"{type(error).__name__}: {error}", int(time.time() * 1000)
            headers = {"delayline-failure": reason, "delayline-last-failed": now}
            broker.publish(broker.delay_exchange + ".parked", broker.app_key, message._message, headers)
        except (AMQPChannelError, ConnectionClosed):
            self.logger.exception("Failed to park message %s; it is rejected.", message)
            return super().nack(message)
        super().ack(message)


def _thrown(broker: DelaylineBroker, message: MessageProxy) -> tuple[type[BaseException], ...]:
    """The errors that an actor declares as final."""
    throws = message.options.get("throws") or broker.get_actor(message.actor_name).options.get("throws") or ()
    return tuple(throws) if isinstance(throws, Iterable) else (throws,)
