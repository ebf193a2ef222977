"""Drives stores/flask_limiter_storage.py: in a real Flask-Limiter by a strategy that Debian's
version of limits has, or "sliding-window-counter" by the calls that limits 5 makes."""

import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.environ["STORES"])
import psycopg  # noqa: E402
from flask import Flask, request  # noqa: E402
from flask_limiter import Limiter  # noqa: E402
from limits import RateLimitItemPerHour  # noqa: E402
from limits.storage import storage_from_string  # noqa: E402

import flask_limiter_storage  # noqa: E402, F401

strategy = sys.argv[1]
uri = "pglimit" + os.environ["DATABASE_URL"][len("postgres") :]
options = {"timeout_s": 60}


def of_flask():
    app = Flask("site")
    logging.getLogger("site").setLevel(logging.CRITICAL)
    limiter = Limiter(
        lambda: request.args["key"] or "none", app=app, storage_uri=uri, storage_options=options, strategy=strategy, headers_enabled=True
    )

    @app.route("/")
    @limiter.limit("5 per hour")
    def done():
        return "done"

    names = {}  # under which Flask-Limiter counts

    @app.after_request
    def note(answer):
        if limiter.current_limit:
            names[request.args["key"]] = limiter.current_limit.key
        return answer

    def hit(key):
        answer = app.test_client().get("/", query_string={"key": key})
        return answer.status_code, answer.headers.get("Retry-After", 0)

    def reset(key):
        limiter.storage.clear(names[key])

    return hit, reset


def of_limits():
    storage, item = storage_from_string(uri, **options), RateLimitItemPerHour(5)

    def hit(key):
        try:
            allowed = storage.acquire_sliding_window_entry(item.key_for(key), item.amount, item.get_expiry(), 1)
            previous, previous_s, count, count_s = storage.get_sliding_window(item.key_for(key), item.get_expiry())
        except psycopg.Error:
            return 503, 0
        weighted = previous * previous_s / item.get_expiry() + count
        if not allowed and weighted <= item.amount - 1:
            raise ValueError(f"denied at {weighted}")
        return (200 if allowed else 429), count_s % item.get_expiry()

    return hit, lambda key: storage.clear_sliding_window(item.key_for(key), item.get_expiry())


hit, reset = of_limits() if strategy == "sliding-window-counter" else of_flask()
with ThreadPoolExecutor(8) as pool:
    for line in sys.stdin:
        do = json.loads(line)
        answers = []
        if do["op"] == "reset":
            reset(do["key"])
        else:
            for status, wait in pool.map(lambda _: hit(do["key"]), range(do["n"])):
                answers.append({"status": status, "retry_after": float(wait)})
        print(json.dumps(answers), flush=True)
