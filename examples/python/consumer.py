"""A consumer with retries that knows nothing about them: it rejects what it could not
process, and finds it in its queue again later.

    pip install pika
    python consumer.py amqp://guest:guest@localhost/ billing
"""

import sys

import pika


def process(body, attempt):
    """Put your work here; raise what you like when it fails."""
    if attempt < 2:
        raise RuntimeError("the bank is closed")
    print("processed", body, "at attempt", attempt, flush=True)


def main(url, app):
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    queue = f"{app}-in"
    channel.queue_declare(
        queue,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            # Rejected messages go to the retry service, under our app key ...
            "x-dead-letter-exchange": "delay.retry",
            "x-dead-letter-routing-key": app,
            # ... and the broker keeps them until they are there.
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    # This is where they come back from. Bind the queue to your own exchanges as well.
    channel.queue_bind(queue, "delay.dispatch", "delay." + "*." * 7 + app)
    channel.basic_qos(prefetch_count=10)

    def on_message(channel, method, properties, body):
        headers = properties.headers or {}
        try:
            process(body, headers.get("delayline-attempt", 0))
        except Exception as error:  # pylint: disable=broad-except
            print("failed:", error, flush=True)
            channel.basic_nack(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, on_message)
    print("waiting for messages", flush=True)
    channel.start_consuming()


if __name__ == "__main__":
    main(*sys.argv[1:])
