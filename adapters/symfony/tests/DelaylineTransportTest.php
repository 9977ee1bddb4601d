<?php

// On a broker of its own: `delayline dev --apps tests/apps.toml --unit-ms 10 -- phpunit`.

declare(strict_types=1);

use Delayline\Messenger\DelaylineStamp;
use Delayline\Messenger\DelaylineTransport;
use Delayline\Messenger\DelaylineTransportFactory;
use PHPUnit\Framework\TestCase;
use Psr\Container\ContainerInterface;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerRunningEvent;
use Symfony\Component\Messenger\EventListener\AddErrorDetailsStampListener;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\Exception\TransportException;
use Symfony\Component\Messenger\Exception\UnrecoverableMessageHandlingException;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;

final class Invoice
{
    public function __construct(public string $text)
    {
    }
}

final class DelaylineTransportTest extends TestCase
{
    private const PATIENCE = 60;

    private DelaylineTransport $transport;
    /** @var list<string> */
    private array $came = [];

    protected function setUp(): void
    {
        $options = ['app_key' => 'billing', 'queue' => 'billing-in'];
        $factory = new DelaylineTransportFactory();
        $dsn = 'delayline+'.getenv('AMQP_URL');
        self::assertTrue($factory->supports($dsn, $options));
        $this->transport = $factory->createTransport($dsn, $options, new PhpSerializer());
    }

    private function send(string $text, object ...$stamps): void
    {
        $this->transport->send(new Envelope(new Invoice($text), $stamps));
    }

    /** Works until this many messages have arrived. Symfony sends failed messages again this many times. */
    private function work(int $messages, callable $handler, int $retries = 0): void
    {
        $handle = function (Invoice $invoice) use ($handler): void {
            $this->came[] = $invoice->text;
            $handler($invoice, count($this->came));
        };
        $bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([Invoice::class => [$handle]]))]);
        $events = new EventDispatcher();
        $events->addSubscriber(new AddErrorDetailsStampListener());
        $strategy = new MultiplierRetryStrategy($retries, 1000);
        $events->addSubscriber(new SendFailedMessageForRetryListener(self::all($this->transport), self::all($strategy)));
        $until = time() + self::PATIENCE;
        $events->addListener(WorkerRunningEvent::class, function (WorkerRunningEvent $event) use ($messages, $until): void {
            if (count($this->came) >= $messages || time() > $until) {
                $event->getWorker()->stop();
            }
        });
        (new Worker(['billing' => $this->transport], $bus, $events))->run(['sleep' => 10000]);
    }

    /** A container that has this under each name. */
    private static function all(object $it): ContainerInterface
    {
        return new class($it) implements ContainerInterface {
            public function __construct(private object $it)
            {
            }

            public function get($id): object
            {
                return $this->it;
            }

            public function has($id): bool
            {
                return true;
            }
        };
    }

    /** The next message of a queue that only an administrator may read. */
    private static function of(string $name): AMQPEnvelope
    {
        $url = parse_url(getenv('DELAYLINE_URL'));
        $vhost = urldecode(substr($url['path'] ?? '/%2F', 1));
        $connection = new AMQPConnection(['host' => $url['host'], 'port' => $url['port'], 'vhost' => $vhost]);
        $connection->connect();
        $queue = new AMQPQueue(new AMQPChannel($connection));
        $queue->setName($name);
        for ($until = time() + self::PATIENCE; time() < $until; usleep(100000)) {
            if ($message = $queue->get(AMQP_AUTOACK)) {
                return $message;
            }
        }
        self::fail("$name stays empty");
    }

    public function testADelayIsRoundedUpAndHasARange(): void
    {
        $key = 'delay.0000.0000.0000.0000.0000.0101.1010.a.b';
        self::assertSame($key, DelaylineTransport::routingKey(89001, 'a.b'));
        self::assertSame("$key.~.x-1", DelaylineTransport::routingKey(90000, 'a.b', 'x-1'));
        foreach ([-1000, 2 ** 28 * 1000] as $wrong) {
            try {
                self::fail(DelaylineTransport::routingKey($wrong, 'a'));
            } catch (RangeException) {
            }
        }
    }

    public function testWhatFailsComesBack(): void
    {
        $this->send('invoice 17', new DelayStamp(2500));
        $this->work(2, function (Invoice $invoice, int $time): void {
            if (1 === $time) {
                throw new RuntimeException('the bank is closed');
            }
        });
        self::assertSame(['invoice 17', 'invoice 17'], $this->came);
    }

    public function testWhatSymfonySendsAgainIsNotRetriedAsWell(): void
    {
        $this->send('invoice 17');
        $closed = fn (Invoice $invoice, int $time) => 1 === $time ? throw new RuntimeException('the bank is closed') : null;
        $this->work(2, $closed, 3);
        // Later than the platform would retry it.
        $this->send('the last one', new DelayStamp(60000));
        $this->work(3, fn () => null);
        self::assertSame(['invoice 17', 'invoice 17', 'the last one'], $this->came);
    }

    public function testWhatIsNotRecoverableIsParked(): void
    {
        $this->send('stolen', new DelayStamp(1000));
        $this->work(1, fn () => throw new UnrecoverableMessageHandlingException('the card is stolen'));
        $parked = self::of('delay.parked');
        self::assertSame('billing', $parked->getRoutingKey());
        self::assertSame('the card is stolen', $parked->getHeader('delayline-failure'));
        self::assertEqualsWithDelta(time(), $parked->getHeader('delayline-last-failed') / 1000, 300);
        self::assertFalse($parked->hasHeader('x-death'));
        $envelope = (new PhpSerializer())->decode(['body' => $parked->getBody()]);
        self::assertSame('stolen', $envelope->getMessage()->text);
        $this->send('after it');
        $this->work(2, fn () => null);
        self::assertSame(['stolen', 'after it'], $this->came);
    }

    public function testWhatTheBrokerRefusesIsAnError(): void
    {
        try {
            $this->send('not ours', new DelaylineStamp(appKey: 'stranger'));
            self::fail('it was sent');
        } catch (TransportException $error) {
            self::assertStringContainsString('ACCESS_REFUSED', $error->getMessage());
        }
        $this->send('the next one');
        $this->work(1, fn () => null);
        self::assertSame(['the next one'], $this->came);
    }

    public function testARecalledMessageDoesNotCome(): void
    {
        $this->send('recalled', new DelayStamp(300000), new DelaylineStamp(recallId: 'invoice-17'));
        $handle = DelaylineTransport::routingKey(300000, 'billing', 'invoice-17');
        $this->transport->recall($handle);
        self::assertSame($handle, self::of('delay.recalled.billing')->getRoutingKey());
        $this->send('after it');
        $this->work(1, fn () => null);
        self::assertSame(['after it'], $this->came);
        $this->expectException(InvalidArgumentException::class);
        $this->transport->recall("$handle\n");
    }
}
