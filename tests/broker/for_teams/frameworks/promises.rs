//! What the pages promise, and what breaks each promise on each page.

/// What a page promises. The test checks each of these separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// The delay is rounded up, and the message goes to its app key.
    Delay,
    Persistent,
    MessageId,
    Recall,
    /// The service or the framework retries, as the page states.
    Retry,
    /// A message that is not to be retried is parked with its id, the reason and the time.
    Park,
    /// A message that the broker refuses is reported.
    Refused,
    /// The program itself refuses a delay of more than 28 bits.
    Range,
    /// A message that no queue takes is reported.
    Returned,
}

impl Promise {
    pub(super) const ALL: [Self; 9] =
        [Delay, Persistent, MessageId, Recall, Retry, Park, Refused, Range, Returned];
}

/// A promise, a text of a page or of a file beside it, and the text that replaces it.
pub(super) type Changes = &'static [(Promise, &'static str, &'static str)];

use Promise::*;

pub(super) const CELERY: Changes = &[
    (Delay, "math.ceil(seconds)", "math.floor(seconds)"),
    (Persistent, "mandatory=True, headers=own)", "mandatory=True, headers=own, delivery_mode=1)"),
    (MessageId, "options[\"message_id\"] = options[\"task_id\"]", "options[\"task_id\"]"),
    (Recall, "`app.recall(result.handle)`", "`app.recal(result.handle)`"),
    (Retry, "raise RuntimeError(\"the bank is closed\")", "raise self.retry(countdown=5)"),
    (Park, "own[\"delayline-failure\"]", "own[\"failure\"]"),
    (
        Refused,
        "charge.apply_async([sys.argv[2]], countdown=float(sys.argv[1]))",
        "try:\n    charge.apply_async([sys.argv[2]], countdown=float(sys.argv[1]))\nexcept Exception as error:\n    if \"REFUSED\" not in f\"{error!r}{error.__cause__!r}\":\n        raise",
    ),
    (Range, "LONGEST = 2**28 - 1", "LONGEST = 2**28"),
    (Returned, "mandatory=True, ", ""),
];

pub(super) const DRAMATIQ: Changes = &[
    (Delay, "math.ceil(milliseconds / 1000)", "milliseconds // 1000"),
    (Persistent, "delivery_mode=2, ", ""),
    (MessageId, "message_id=message.message_id, ", ""),
    (Recall, "`broker.recall(message.options[\"handle\"])`", "`message.options[\"handle\"]`"),
    (Retry, ", middleware=[Retries(max_retries=0)]", ""),
    (Park, "\"delayline-failure\": reason", "\"failure\": reason"),
    (
        Refused,
        "                raise\n            except AMQPConnectionError",
        "                return\n            except AMQPConnectionError",
    ),
    (Range, "LONGEST = 2**28 - 1", "LONGEST = 2**28"),
    (Returned, "mandatory=True", "mandatory=False"),
];

pub(super) const FASTSTREAM: Changes = &[
    (Delay, "math.ceil(seconds)", "math.floor(seconds)"),
    (Persistent, "mandatory=True, persist=True", "mandatory=True"),
    (Recall, "        await recall(handle)\n", ""),
    (Retry, "REJECT_ON_ERROR", "NACK_ON_ERROR"),
    (Park, "\"delayline-failure\"", "\"failure\""),
    (
        Refused,
        "asyncio.run(main())",
        "try:\n    asyncio.run(main())\nexcept Exception as error:\n    if \"REFUSED\" not in f\"{error!r}{error.__cause__!r}\":\n        raise",
    ),
    (Range, "<= 2**28 - 1", "<= 2**28"),
    (Returned, "mandatory=True", "mandatory=False"),
];

pub(super) const TASKIQ: Changes = &[
    (Delay, "math.ceil(seconds)", "math.floor(seconds)"),
    (Persistent, "DeliveryMode.PERSISTENT", "DeliveryMode.NOT_PERSISTENT"),
    (Recall, "            await broker.recall(broker.key(delay, *id))\n", ""),
    (Retry, "raise RuntimeError(\"the bank is closed\")", "pass"),
    (Park, "\"delayline-failure\"", "\"failure\""),
    (
        Refused,
        "asyncio.run(main())",
        "try:\n    asyncio.run(main())\nexcept Exception as error:\n    if \"REFUSED\" not in f\"{error!r}{error.__cause__!r}\":\n        raise",
    ),
    (Range, "<= 2**28 - 1", "<= 2**28"),
    (Returned, "mandatory=True", "mandatory=False"),
];

pub(super) const NESTJS: Changes = &[
    (Delay, "Math.ceil(seconds)", "Math.floor(seconds)"),
    (Persistent, "persistent: true, ", ""),
    (MessageId, "{ messageId: randomUUID() }", "{}"),
    (Recall, "    await billing.recall(handle);\n", ""),
    (Retry, "MessageHandlerErrorBehavior.NACK", "MessageHandlerErrorBehavior.REQUEUE"),
    (Park, "\"delayline-failure\"", "failure"),
    (Refused, "...options });", "...options }).catch(() => {});"),
    (Range, "2 ** 28 - 1", "2 ** 28"),
    (Returned, "mandatory: true, ", ""),
];

pub(super) const RASCAL: Changes = &[
    (Delay, "Math.ceil(seconds)", "Math.floor(seconds)"),
    (Persistent, "persistent: true, mandatory", "persistent: false, mandatory"),
    (Recall, "    await recall(handle);\n", ""),
    (Retry, "{ strategy: \"nack\" }", "{ strategy: \"nack\", requeue: true }"),
    (Park, "\"delayline-failure\"", "failure"),
    (Refused, ".on(\"error\", reject)", ".on(\"error\", resolve)"),
    (Range, "2 ** 28 - 1", "2 ** 28"),
    (Returned, "mandatory: true }", "mandatory: false }"),
];

pub(super) const MOLECULER: Changes = &[
    (Delay, "Math.ceil(seconds)", "Math.floor(seconds)"),
    (Persistent, "persistent: true, ", ""),
    (MessageId, "messageId: randomUUID(), ", ""),
    (Recall, "    await service.recall(handle);\n", ""),
    (Retry, "this.channel.reject(message, false)", "this.channel.reject(message, true)"),
    (Park, "\"delayline-failure\"", "failure"),
    (Refused, ".once(\"error\", reject)", ".once(\"error\", _)"),
    (Refused, "      await channel.close();\n", ""),
    (Range, "2 ** 28 - 1", "2 ** 28"),
    (Returned, "mandatory: true, ", ""),
];

pub(super) const SPRING: Changes = &[
    (Delay, "Math.ceil(seconds)", "Math.floor(seconds)"),
    (
        Persistent,
        "UUID.randomUUID().toString()).build()",
        "UUID.randomUUID().toString()).setDeliveryMode(MessageDeliveryMode.NON_PERSISTENT).build()",
    ),
    (MessageId, ".setMessageId(UUID.randomUUID().toString())", ""),
    (Recall, "                    billing.recall(key);\n", ""),
    (Retry, "default-requeue-rejected=false", "default-requeue-rejected=true"),
    (Park, "\"delayline-failure\"", "\"failure\""),
    (Refused, "!confirm.ack() || ", ""),
    (Range, "(1 << 28) - 1", "(1 << 28)"),
    (Returned, "template.mandatory=true", "template.mandatory=false"),
];

pub(super) const SPRING_CLOUD_STREAM: Changes = &[
    (Delay, "Math.ceil(seconds)", "Math.floor(seconds)"),
    (
        Persistent,
        "bindings.later.producer.declare-exchange=false",
        "bindings.later.producer.declare-exchange=false\nspring.cloud.stream.rabbit.bindings.later.producer.delivery-mode=NON_PERSISTENT",
    ),
    (Recall, "                    recall(context.getBean(RabbitTemplate.class), key);\n", ""),
    (Retry, "consumer.max-attempts=1", "consumer.max-attempts=2"),
    (Park, "\"delayline-failure\"", "\"failure\""),
    (Refused, "!confirm.ack() || ", ""),
    (Range, "(1 << 28) - 1", "(1 << 28)"),
    (Returned, "sent.getReturned() != null", "false"),
];

pub(super) const WATERMILL: Changes = &[
    (Delay, "(delay + time.Second - 1)", "delay"),
    (
        Persistent,
        "	publishing.MessageId = msg.UUID\n",
        "	publishing.MessageId = msg.UUID\n	publishing.DeliveryMode = 1\n",
    ),
    (MessageId, "	publishing.MessageId = msg.UUID\n", ""),
    (Recall, "`delayline.Recall(channel, \"delay\", topic)`", "`channel.Confirm(false)`"),
    (Retry, "NoRequeueOnNack = true", "NoRequeueOnNack = false"),
    (Park, "Failure = \"delayline-failure\"", "Failure = \"failure\""),
    (Refused, "check(publisher.Publish(", "_ = (publisher.Publish("),
    (Range, "(1<<28 - 1)", "(1 << 28)"),
];

pub(super) const SYMFONY: Changes = &[
    (Delay, "ceil($milliseconds / 1000)", "floor($milliseconds / 1000)"),
    (Persistent, "['headers' => $headers, ", "['headers' => $headers, 'delivery_mode' => 1, "),
    (MessageId, "'message_id' =>", "'id' =>"),
    (Recall, "`$transport->recall(", "`$transport->recal("),
    (Retry, "max_retries: 0", "max_retries: 3"),
    (Park, "'delayline-failure' =>", "'failure' =>"),
    (
        Refused,
        "$this->bus->dispatch(new Invoice($input->getArgument('text')), [$delay]);",
        "try { $this->bus->dispatch(new Invoice($input->getArgument('text')), [$delay]); } catch (\\Exception $error) { if (!str_contains($error->getMessage(), 'REFUSED')) { throw $error; } }",
    ),
    (Range, "2 ** 28 - 1", "2 ** 28"),
    (Returned, "\\AMQP_MANDATORY", "\\AMQP_NOPARAM"),
];
