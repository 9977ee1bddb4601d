"""Answers conformance cases: one JSON object a line in, one a line out.

    delayline-bench conformance python3 conformance/runners/runner.py
"""
import json
import math
import re
import sys

LONGEST = 2**28 - 1


def check_app(app):
    if not 1 <= len(app.encode()) <= 150:
        raise ValueError("an app key is 1 to 150 bytes long")
    for word in app.split("."):
        if word in ("", "~"):
            raise ValueError("no word of an app key is empty or `~`")
        if any(c in "*#" or c.isspace() or not c.isprintable() for c in word):
            raise ValueError("an app key has no `*`, `#`, white space or control characters")
    return app


def routing_key(seconds, app):
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError("a delay is a number of seconds")
    if not 0 <= seconds <= LONGEST:
        raise ValueError("a delay is 0 to 268,435,455 seconds")
    bits = f"{math.ceil(seconds):034_b}".replace("_", ".")
    return f"delay.{bits}.{check_app(app)}"


def decode(key):
    words = key.split(".", 8)
    if words[0] != "delay" or len(words) < 9:
        raise ValueError("a routing key is `delay`, seven words of four bits, and an app key")
    if any(len(word) != 4 or not set(word) <= set("01") for word in words[1:8]):
        raise ValueError("a word of the delay is not four bits")
    return {"seconds": int("".join(words[1:8]), 2), "app": check_app(words[8])}


def recall(seconds, app, id):
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", id):
        raise ValueError("an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`")
    key = f"{routing_key(seconds, app)}.~.{id}"
    if len(key.encode()) > 255:
        raise ValueError("the routing key is longer than 255 bytes")
    return {"key": key, "exchange": f"delay.recall.{app}", "queue": f"delay.recalled.{app}"}


def app_of(key):
    delayed = re.fullmatch(r"delay(?:\.[01]{4}){7}\.(.+?)(\.~\.[A-Za-z0-9_-]{1,64})?", key, re.DOTALL)
    return check_app(delayed[1] if delayed else key)


def answer(case):
    match case["question"]:
        case "key":
            return {"key": routing_key(case["seconds"], case["app"])}
        case "decode":
            return decode(case["key"])
        case "bind":
            return {"pattern": "delay." + "*." * 7 + check_app(case["app"])}
        case "recall":
            return recall(case["seconds"], case["app"], case["id"])
        case "retry":
            return {"app": app_of(case["key"])}


for line in sys.stdin:
    try:
        print(json.dumps(answer(json.loads(line))), flush=True)
    except ValueError as error:
        print(json.dumps({"error": str(error)}), flush=True)
