<?php

declare(strict_types=1);

namespace Delayline\Messenger;

use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpReceivedStamp;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpStamp;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransport;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\Connection;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Exception\TransportException;
use Symfony\Component\Messenger\Exception\UnrecoverableExceptionInterface;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Stamp\ErrorDetailsStamp;
use Symfony\Component\Messenger\Stamp\NonSendableStampInterface;
use Symfony\Component\Messenger\Stamp\RedeliveryStamp;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Messenger\Transport\TransportFactoryInterface;
use Symfony\Component\Messenger\Transport\TransportInterface;

/** The application that gets a message, if it is not our own, and the id by which it can be recalled. */
final class DelaylineStamp implements NonSendableStampInterface
{
    public function __construct(public readonly ?string $appKey = null, public readonly ?string $recallId = null)
    {
    }
}

/**
 * A transport whose delays wait in RabbitMQ, in the exchanges and queues of delayline.
 *
 * A message that fails is rejected, and is retried by the platform's policy, unless Symfony sends it again. If its
 * error is unrecoverable, the message is parked with the error's text.
 */
final class DelaylineTransport implements TransportInterface
{
    public const LONGEST = 2 ** 28 - 1;

    private const HANDLE = '/^delay(?:\.[01]{4}){7}\.(.+)\.~\.[A-Za-z0-9_-]{1,64}$/D';

    /** The delivery that Symfony sent again. Its worker rejects it as well. */
    private ?\AMQPEnvelope $sentAgain = null;

    public function __construct(
        private TransportInterface $delayed,
        private TransportInterface $parked,
        private Connection $connection,
        private Connection $parking,
        private string $set,
        private string $appKey,
    ) {
    }

    /** The routing key for a delay, rounded up to seconds. With an id, it is the handle for a recall. */
    public static function routingKey(float $milliseconds, string $appKey, ?string $recallId = null): string
    {
        $seconds = (int) ceil($milliseconds / 1000);
        if ($seconds < 0 || $seconds > self::LONGEST) {
            throw new \RangeException(sprintf('a delay is 0 to %d seconds, not %d', self::LONGEST, $seconds));
        }
        $words = implode('.', str_split(sprintf('%028b', $seconds), 4));

        return "delay.$words.$appKey".(null === $recallId ? '' : ".~.$recallId");
    }

    public function send(Envelope $envelope): Envelope
    {
        $delay = $envelope->last(DelayStamp::class)?->getDelay() ?? 0;
        $stamp = $envelope->last(DelaylineStamp::class);
        $key = self::routingKey($delay, $stamp?->appKey ?? $this->appKey, $stamp?->recallId);
        self::put($this->delayed, $this->connection, self::anew($envelope, $key, []));
        if (null !== $envelope->last(RedeliveryStamp::class)) {
            $this->sentAgain = self::delivery($envelope);
        }

        return $envelope;
    }

    public function get(): iterable
    {
        return $this->delayed->get();
    }

    public function ack(Envelope $envelope): void
    {
        $this->delayed->ack($envelope);
    }

    public function reject(Envelope $envelope): void
    {
        if (null !== $this->sentAgain && self::delivery($envelope) === $this->sentAgain) {
            $this->sentAgain = null;
            $this->delayed->ack($envelope);

            return;
        }
        $error = $envelope->last(ErrorDetailsStamp::class);
        if (null === $error || !is_a($error->getExceptionClass(), UnrecoverableExceptionInterface::class, true)) {
            $this->delayed->reject($envelope);

            return;
        }
        $headers = [
            'delayline-failure' => $error->getExceptionMessage(),
            'delayline-last-failed' => (int) (microtime(true) * 1000),
        ];
        $parked = self::anew($envelope->withoutAll(ErrorDetailsStamp::class), $this->appKey, $headers);
        self::put($this->parked, $this->parking, $parked);
        $this->delayed->ack($envelope);
    }

    /** Recalls a message that has an id and is not due yet. */
    public function recall(string $handle): void
    {
        if (!preg_match(self::HANDLE, $handle, $found)) {
            throw new \InvalidArgumentException("not the handle of a message with an id: $handle");
        }
        $queue = new \AMQPQueue($this->connection->channel());
        $queue->setName("$this->set.recalled.$found[1]");
        $queue->bind("$this->set.recall.$found[1]", $handle);
    }

    /** Returns once the broker has stored the message. */
    private static function put(TransportInterface $transport, Connection $connection, Envelope $envelope): void
    {
        $returned = false;
        try {
            $connection->channel()->setReturnCallback(static function () use (&$returned): void {
                $returned = true;
            });
        } catch (\AMQPException $error) {
            throw new TransportException($error->getMessage(), 0, $error);
        }
        $transport->send($envelope);
        if ($returned) {
            throw new TransportException('no queue took the message');
        }
    }

    private static function delivery(Envelope $envelope): ?\AMQPEnvelope
    {
        return $envelope->last(AmqpReceivedStamp::class)?->getAmqpEnvelope();
    }

    /**
     * A received message keeps its id. Headers that the broker added to it, such as `x-death`, are not sent again.
     */
    private static function anew(Envelope $envelope, string $key, array $headers): Envelope
    {
        $id = self::delivery($envelope)?->getMessageId();
        $attributes = ['headers' => $headers, 'message_id' => $id ?: bin2hex(random_bytes(16))];

        return $envelope->withoutAll(DelayStamp::class)->withoutAll(AmqpReceivedStamp::class)
            ->with(new AmqpStamp($key, \AMQP_MANDATORY, $attributes));
    }
}

/** Makes transports of DSNs such as `delayline+amqp://user:password@host/vhost` with the option `app_key`. */
final class DelaylineTransportFactory implements TransportFactoryInterface
{
    public function createTransport(string $dsn, array $options, SerializerInterface $serializer): TransportInterface
    {
        ['app_key' => $appKey, 'queue' => $queue, 'set' => $set] =
            $options + ['queue' => $options['app_key'], 'set' => 'delay'];
        $make = static fn (string $exchange): Connection => Connection::fromDsn(substr($dsn, \strlen('delayline+')), [
            // Both exist, and we may not declare them. Without the time limit, a refused message would count as sent.
            'auto_setup' => false,
            'confirm_timeout' => 10,
            'exchange' => ['name' => $exchange],
            'queues' => [$queue => null],
        ]);
        $delayed = $make($set);
        $parking = $make("$set.parked");
        [$sends, $parks] = [new AmqpTransport($delayed, $serializer), new AmqpTransport($parking, $serializer)];

        return new DelaylineTransport($sends, $parks, $delayed, $parking, $set, $appKey);
    }

    public function supports(string $dsn, array $options): bool
    {
        return str_starts_with($dsn, 'delayline+amqp');
    }
}
