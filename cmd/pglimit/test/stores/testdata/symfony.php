<?php

// Drives stores/PglimitFactory.php with the interfaces and classes of Symfony.

use Symfony\Component\RateLimiter\Exception\MaxWaitDurationExceededException;
use Symfony\Component\RateLimiter\Exception\ReserveNotSupportedException;

require 'Symfony/Component/RateLimiter/autoload.php';
require getenv('STORES').'/PglimitFactory.php';

$url = parse_url(getenv('DATABASE_URL'));
$dsn = sprintf('pgsql:host=%s;port=%d;dbname=%s', $url['host'], $url['port'], substr($url['path'], 1));
$connect = fn () => Pglimit\connect($dsn, $url['user'], $url['pass'] ?? null, 60);
$factory = new Pglimit\PglimitFactory($connect, 'login', getenv('ON_ERROR') ?: 'fail_closed');

function expect(bool $holds, string $what): void
{
    if (!$holds) {
        throw new Exception($what);
    }
}

// What reserve does with a limit and with a queue, before the test's requests.
function reserves(Closure $connect, Pglimit\PglimitFactory $factory): void
{
    $limiter = $factory->create('reserves-'.getmypid());
    expect(0.0 == $limiter->reserve(3)->getWaitDuration() && 2 === $limiter->consume(0)->getRemainingTokens(), 'a reservation that fits');
    try {
        $limiter->reserve(3, 1.0);
        expect(false, 'a reservation that would wait an hour');
    } catch (MaxWaitDurationExceededException $e) {
        expect(2 === $e->getRateLimit()->getRemainingTokens() && 5 === $e->getRateLimit()->getLimit(), 'what the exception says');
    }
    try {
        $limiter->reserve(3);
        expect(false, 'a reservation without a turn');
    } catch (ReserveNotSupportedException) {
    }
    try {
        $limiter->consume(6);
        expect(false, 'more than the limit');
    } catch (InvalidArgumentException) {
    }
    $queue = (new Pglimit\PglimitFactory($connect, 'queue', retries: 0))->create('queue-'.getmypid());
    expect(0.0 == $queue->reserve()->getWaitDuration(), 'the first turn');
    try {
        $queue->reserve(1, 1.0);
        expect(false, 'a turn that is too late');
    } catch (MaxWaitDurationExceededException) {
    }
    expect(round($queue->reserve()->getWaitDuration() / 3600) === 1.0, 'the second turn, which was not taken');
}

if (getenv('ON_ERROR') === false) {
    reserves($connect, $factory);
}

while (($line = fgets(STDIN)) !== false) {
    $do = json_decode($line, true);
    $answers = [];
    if ($do['op'] === 'reset') {
        $factory->create($do['key'])->reset();
    }
    for ($i = 0; $i < $do['n']; ++$i) {
        try {
            $limit = $factory->create($do['key'], $do['id'] ?: null)->consume();
            $answers[] = ['status' => $limit->isAccepted() ? 200 : 429, 'retry_after' => $limit->getRetryAfter()->format('U.u') - microtime(true)];
        } catch (Pglimit\Unavailable) {
            $answers[] = ['status' => 503];
        }
    }
    echo json_encode($answers), "\n";
}
