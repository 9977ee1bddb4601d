<?php
// Answers conformance cases: one JSON object a line in, one a line out.
//
//     delayline-bench conformance php conformance/runners/runner.php
const LONGEST = 2 ** 28 - 1;

function check_app(string $app): string
{
    if (strlen($app) < 1 || strlen($app) > 150) {
        throw new RangeException("an app key is 1 to 150 bytes long");
    }
    foreach (explode(".", $app) as $word) {
        if ($word === "" || $word === "~") {
            throw new RangeException("no word of an app key is empty or `~`");
        }
        if (preg_match('/[*#\s\p{Z}\p{Cc}]/u', $word)) {
            throw new RangeException("an app key has no `*`, `#`, white space or control characters");
        }
    }
    return $app;
}

function routing_key(mixed $seconds, string $app): string
{
    if (!(is_int($seconds) || is_float($seconds)) || !($seconds >= 0 && $seconds <= LONGEST)) {
        throw new RangeException("a delay is 0 to 268,435,455 seconds");
    }
    $bits = str_pad(decbin((int) ceil($seconds)), 28, "0", STR_PAD_LEFT);
    return "delay." . implode(".", str_split($bits, 4)) . "." . check_app($app);
}

function decode(string $key): array
{
    if (!preg_match('/\Adelay((?:\.[01]{4}){7})\.(.+)\z/s', $key, $found)) {
        throw new RangeException("a routing key is `delay`, seven words of four bits, and an app key");
    }
    return ["seconds" => bindec(str_replace(".", "", $found[1])), "app" => check_app($found[2])];
}

function recall(mixed $seconds, string $app, string $id): array
{
    if (!preg_match('/\A[A-Za-z0-9_-]{1,64}\z/', $id)) {
        throw new RangeException("an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`");
    }
    $key = routing_key($seconds, $app) . ".~." . $id;
    if (strlen($key) > 255) {
        throw new RangeException("the routing key is longer than 255 bytes");
    }
    return ["key" => $key, "exchange" => "delay.recall.$app", "queue" => "delay.recalled.$app"];
}

function app_of(string $key): string
{
    $delayed = preg_match('/\Adelay(?:\.[01]{4}){7}\.(.+?)(?:\.~\.[A-Za-z0-9_-]{1,64})?\z/s', $key, $found);
    return check_app($delayed ? $found[1] : $key);
}

function answer(array $it): array
{
    return match ($it["question"]) {
        "key" => ["key" => routing_key($it["seconds"], $it["app"])],
        "decode" => decode($it["key"]),
        "bind" => ["pattern" => "delay." . str_repeat("*.", 7) . check_app($it["app"])],
        "recall" => recall($it["seconds"], $it["app"], $it["id"]),
        "retry" => ["app" => app_of($it["key"])],
    };
}

while (($line = fgets(STDIN)) !== false) {
    try {
        $said = answer(json_decode($line, true, 512, JSON_THROW_ON_ERROR));
    } catch (RangeException $error) {
        $said = ["error" => $error->getMessage()];
    }
    echo json_encode($said, JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES), "\n";
}
