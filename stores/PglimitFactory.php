<?php

// pglimit as a rate limiter of Symfony, over PDO and stores.sql: one statement a decision.
// README.md beside it says more.
//
//   $factory = new Pglimit\PglimitFactory(fn () => Pglimit\connect('pgsql:host=db;dbname=app', 'app', $password), 'login');
//   $factory->create($request->getClientIp())->consume()->ensureAccepted();

declare(strict_types=1);

namespace Pglimit;

use Symfony\Component\RateLimiter\Exception\MaxWaitDurationExceededException;
use Symfony\Component\RateLimiter\Exception\ReserveNotSupportedException;
use Symfony\Component\RateLimiter\LimiterInterface;
use Symfony\Component\RateLimiter\RateLimit;
use Symfony\Component\RateLimiter\RateLimiterFactoryInterface;
use Symfony\Component\RateLimiter\Reservation;

/** PostgreSQL did not answer, also not when it was asked again. */
final class Unavailable extends \RuntimeException
{
}

/** Connects, with a bound on each wait. The connection stays open across requests of PHP-FPM. */
function connect(string $dsn, ?string $user = null, ?string $password = null, int $timeoutS = 2): \PDO
{
    $bounds = sprintf(";connect_timeout=%d;keepalives=1;tcp_user_timeout=%d;options='-c statement_timeout=%d'", $timeoutS, 1000 * $timeoutS, 1000 * $timeoutS);

    return new \PDO($dsn.$bounds, $user, $password, [
        \PDO::ATTR_ERRMODE => \PDO::ERRMODE_EXCEPTION,
        \PDO::ATTR_PERSISTENT => true,
        \PDO::PGSQL_ATTR_DISABLE_PREPARES => true,
    ]);
}

if (interface_exists(RateLimiterFactoryInterface::class)) { // Symfony 7.3
    /** @internal */
    abstract class Factory implements RateLimiterFactoryInterface
    {
    }
} else {
    /** @internal */
    abstract class Factory
    {
    }
}

final class PglimitFactory extends Factory
{
    private ?\PDO $connection = null;

    /**
     * @param \Closure(): \PDO $connect
     * @param string           $policy  of pglimit_policy
     * @param string           $onError while PostgreSQL is away: 'fail_closed' throws Unavailable, 'fail_open' accepts
     * @param int              $retries how often a statement whose answer was lost is sent again, under an idempotency
     *                                  key, so that it counts once; 0 for a leaky_bucket_queue, which takes no such key
     */
    public function __construct(private \Closure $connect, private string $policy, private string $onError = 'fail_closed', private int $retries = 1)
    {
        if ('fail_closed' !== $onError && 'fail_open' !== $onError) {
            throw new \InvalidArgumentException(sprintf('pglimit: $onError is "%s": must be "fail_closed" or "fail_open".', $onError));
        }
    }

    /** @param string|null $idempotencyKey names the request for a day. Default: a random name, for a minute. Never what a client sends. */
    public function create(?string $key = null, ?string $idempotencyKey = null): LimiterInterface
    {
        return new PglimitLimiter($this, $this->policy, self::fit($key ?? ''), 'fail_open' === $this->onError, $idempotencyKey);
    }

    /**
     * Runs a statement and returns its row. $arguments get an idempotency key and how many seconds to remember it. In the caller's transaction nothing is
     * sent again.
     *
     * @internal
     */
    public function ask(string $sql, \Closure $arguments, ?string $given = null): array
    {
        $arguments = $arguments($given ?? ($this->retries > 0 ? bin2hex(random_bytes(16)) : null), null === $given ? 60 : 86400);
        for ($tries = 0;; ++$tries) {
            $within = false;
            try {
                $connection = $this->connection();
                $within = $connection->inTransaction();
                $statement = $connection->prepare($sql);
                $statement->execute($arguments);

                return $statement->fetch(\PDO::FETCH_ASSOC);
            } catch (\PDOException $e) {
                // Without an SQLSTATE of the server, pdo_pgsql says HY000. A mistake, such as 22023, is another class.
                if (!preg_match('/^(08|25006|40|53|55P03|57|HY000)/', (string) ($e->errorInfo[0] ?? '08'))) {
                    throw $e;
                }
                $this->connection = null;
                if ($within || $tries >= $this->retries) {
                    throw new Unavailable('pglimit: PostgreSQL does not answer: '.$e->getMessage(), 0, $e);
                }
            }
        }
    }

    /** @internal */
    public function connection(): \PDO
    {
        return $this->connection ??= ($this->connect)();
    }

    /** Returns a key that PostgreSQL can store: 1 to 1,024 bytes of UTF-8 without NUL. Others become a hash. */
    private static function fit(string $key): string
    {
        $fits = '' !== $key && \strlen($key) <= 1024 && preg_match('//u', $key) && !str_contains($key, "\0");

        return $fits ? $key : 'sha256:'.hash('sha256', $key);
    }
}

/** @internal */
final class PglimitLimiter implements LimiterInterface
{
    public function __construct(private PglimitFactory $factory, private string $policy, private string $key, private bool $open, private ?string $id)
    {
    }

    public function consume(int $tokens = 1): RateLimit
    {
        try {
            return $this->rateLimit($this->take($tokens), $tokens);
        } catch (Unavailable $e) {
            if (!$this->open) {
                throw $e;
            }

            return new RateLimit($tokens, new \DateTimeImmutable(), true, $tokens);
        }
    }

    /**
     * Books a turn of a leaky_bucket_queue. Other algorithms have no turns: what fits now is booked, and a denial throws
     * and consumes nothing.
     */
    public function reserve(int $tokens = 1, ?float $maxTime = null): Reservation
    {
        $this->factory->ask('SELECT 1', fn () => []); // connects again if it must, since nothing is sent again below
        $connection = $this->factory->connection();
        $within = $connection->inTransaction();
        $within ? $connection->exec('SAVEPOINT pglimit_reserve') : $connection->beginTransaction();
        try {
            $row = $this->take($tokens);
            $limit = $this->rateLimit($row, $tokens);
            $wait = (float) ($limit->isAccepted() ? $row['delay_s'] : $row['retry_after_s']);
            if (null !== $maxTime && $wait > $maxTime) {
                throw new MaxWaitDurationExceededException(sprintf('The wait of %.3f seconds is longer than the maximum of %.3f.', $wait, $maxTime), $limit);
            }
            if (!$limit->isAccepted()) {
                throw new ReserveNotSupportedException(__CLASS__);
            }
        } catch (Unavailable $e) {
            throw $e; // the transaction ends with its connection
        } catch (\Throwable $e) {
            $within ? $connection->exec('ROLLBACK TO SAVEPOINT pglimit_reserve') : $connection->rollBack();
            throw $e;
        }
        try {
            $within || $connection->commit();
        } catch (\PDOException $e) {
            throw new Unavailable('pglimit: whether the turn is booked is unknown: '.$e->getMessage(), 0, $e);
        }

        return new Reservation(microtime(true) + $wait, $limit);
    }

    public function reset(): void
    {
        $this->factory->ask('SELECT pglimit.reset(?, ?)', fn () => [$this->policy, $this->key]);
    }

    private function take(int $tokens): array
    {
        if (0 === $tokens) { // reads
            return $this->factory->ask(
                'SELECT allowed::int AS allowed, remaining, ceil(level + remaining) AS capacity, retry_after_s, delay_s FROM pglimit.check(?, ?, 0)',
                fn () => [$this->policy, $this->key],
            );
        }
        $sql = 'SELECT allowed::int AS allowed, remaining, capacity, retry_after_s, delay_s FROM pglimit_store.allow(?, ?, ?, ?, ?)';

        return $this->factory->ask($sql, fn (?string $id, int $seconds) => [$this->policy, $this->key, $tokens, $id, $seconds], $this->id);
    }

    private function rateLimit(array $row, int $tokens): RateLimit
    {
        if (null === $row['retry_after_s']) { // never
            throw new \InvalidArgumentException(sprintf('Cannot take %d tokens: the limit is %d.', $tokens, $row['capacity']));
        }
        $at = \DateTimeImmutable::createFromFormat('U.u', sprintf('%.6F', microtime(true) + $row['retry_after_s']));

        return new RateLimit((int) $row['remaining'], $at, (bool) $row['allowed'], (int) $row['capacity']);
    }
}
