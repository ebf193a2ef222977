"""pglimit in Django: a decorator for views, and a middleware for all of them.

Each is one statement a request over Django's own connection and stores.sql. README.md beside it
says more. Keep connections alive and bound their waits in DATABASES:

    "CONN_MAX_AGE": 600,
    "OPTIONS": {"connect_timeout": 2, "options": "-c statement_timeout=2000", "keepalives": 1},
"""

import functools
import hashlib
import math
import uuid
from contextlib import nullcontext

from django.conf import settings
from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import JsonResponse
from django.utils.module_loading import import_string


class Unavailable(Exception):
    """PostgreSQL did not answer, also not when it was asked again."""


def fit(key):
    """Returns a key that PostgreSQL can store: 1 to 1,024 bytes without NUL. Others become a hash."""
    data = str(key).encode("utf-8", "surrogateescape")
    try:
        if 1 <= len(data) <= 1024 and b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        pass
    return "sha256:" + hashlib.sha256(data).hexdigest()


def take(policy, key, cost=1, idempotency_key=None, using="default", retries=1, savepoint=False):
    """Requests cost units of a policy of pglimit_policy, and returns (allowed, remaining,
    retry_after_s, reset_after_s). retry_after_s is None if the cost never fits.

    In a transaction, as with ATOMIC_REQUESTS, the decision is part of it: a rollback undoes it, and
    nothing is sent again. Outside, a statement whose answer was lost is sent again under the
    idempotency key, and counts once. The key is remembered for a day; a random one, by default,
    for a minute. With savepoint the transaction can go on after an error.
    """
    connection = connections[using]
    within = connection.in_atomic_block
    remember_s = 86400 if idempotency_key else 60
    if not within and retries > 0:
        idempotency_key = idempotency_key or str(uuid.uuid4())
    for tries in range(retries + 1):
        try:
            with transaction.atomic(using) if within and savepoint else nullcontext():
                with connection.cursor() as cursor:
                    cursor.execute(
                        "SELECT allowed, remaining, retry_after_s, reset_after_s FROM pglimit_store.allow(%s, %s, %s, %s, %s)",
                        [policy, fit(key), cost, idempotency_key, remember_s],
                    )
                    return cursor.fetchone()
        except (OperationalError, InterfaceError) as error:  # a mistake is another class
            if within or tries == retries:
                raise Unavailable(f"pglimit: PostgreSQL does not answer: {error}") from error
            connection.close()  # the next statement connects again


def client_address(request):
    """The address of the connection. Behind a proxy, give your own key."""
    return request.META["REMOTE_ADDR"]


def limit(policy, key=client_address, cost=1, idempotency_key=lambda request: None, on_error="fail_closed", using="default", retries=1):
    """Decorates a view: requests cost units of policy for key(request) before it runs.

    It sets RateLimit, and answers a denial with 429 and Retry-After. A key of None is no limit.
    idempotency_key(request) names the request in a retry: never what a client sends, because a
    repeated one is not counted. If PostgreSQL is away, on_error "fail_closed", the default, answers
    503, and "fail_open" passes.
    """
    if on_error not in ("fail_closed", "fail_open"):
        raise ValueError(f"pglimit: on_error is {on_error!r}: must be 'fail_closed' or 'fail_open'")

    def decorate(view):
        @functools.wraps(view)
        def limited(request, *args, **kwargs):
            of = key(request)
            if of is None:
                return view(request, *args, **kwargs)
            try:
                allowed, remaining, retry_after_s, reset_after_s = take(
                    policy, of, cost, idempotency_key(request), using, retries, savepoint=on_error == "fail_open"
                )
            except Unavailable:
                if on_error == "fail_open":
                    return view(request, *args, **kwargs)
                return refuse(503, "The rate limit cannot be checked", 1)
            wait = reset_after_s if allowed else retry_after_s
            response = view(request, *args, **kwargs) if allowed else refuse(429, "Too many requests", wait)
            response["RateLimit"] = f'"{policy}";r={max(0, math.floor(remaining))}' + ("" if wait is None else f";t={math.ceil(wait)}")
            return response

        return limited

    return decorate


def refuse(status, title, wait):
    response = JsonResponse({"title": title, "status": status}, status=status, content_type="application/problem+json")
    if wait is not None:
        response["Retry-After"] = str(math.ceil(wait))
    return response


class PglimitMiddleware:
    """Limits all views, by the arguments of limit in settings.PGLIMIT, where key may be a dotted
    path: {"policy": "login", "key": "site.keys.api_key"}. It runs outside the view's transaction,
    so a view that fails is counted as well."""

    def __init__(self, get_response):
        options = {name: import_string(value) if name in ("key", "idempotency_key") and isinstance(value, str) else value for name, value in settings.PGLIMIT.items()}
        self.limited = limit(**options)(get_response)

    def __call__(self, request):
        return self.limited(request)
