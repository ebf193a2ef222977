"""Drives stores/django_pglimit.py in a real Django: "autocommit" is the middleware, "atomic" the
decorator with ATOMIC_REQUESTS."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

import django
from django.conf import settings

sys.path.insert(0, os.environ["STORES"])
atomic = sys.argv[1] == "atomic"
url = urlparse(os.environ["DATABASE_URL"])
on_error = os.environ.get("ON_ERROR", "fail_closed")
options = {
    "policy": "login",
    "key": lambda request: request.GET["key"],
    "idempotency_key": lambda request: request.headers.get("X-Task"),
    "on_error": on_error,
}
settings.configure(
    SECRET_KEY="of the test",
    LOGGING_CONFIG=None,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[] if atomic else ["django_pglimit.PglimitMiddleware"],
    PGLIMIT=options,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": url.hostname,
            "PORT": url.port,
            "USER": url.username,
            "PASSWORD": url.password or "",
            "NAME": url.path[1:],
            "ATOMIC_REQUESTS": atomic,
            "CONN_MAX_AGE": 0 if atomic else 600,  # Django 3 notices a lost connection when it begins
            "OPTIONS": {"connect_timeout": 60, "options": "-c statement_timeout=60000", "keepalives": 1},
        }
    },
)
django.setup()

from django.db import close_old_connections, connection  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

import django_pglimit  # noqa: E402


def done(request):
    if request.GET.get("fails"):
        raise ValueError("after the decision")
    return HttpResponse("done")


urlpatterns = [path("", django_pglimit.limit(**options)(done) if atomic else done)]


def hit(key, task):
    close_old_connections()  # as at each request, but for this client's
    client = Client(raise_request_exception=False)
    if key == "rolled back":  # with ATOMIC_REQUESTS a view that raises gives back what it took
        client.get("/", {"key": key, "fails": "yes"})
    answer = client.get("/", {"key": key}, **({"HTTP_X_TASK": task} if task else {}))
    return {
        "status": answer.status_code,
        "retry_after": float(answer.get("Retry-After", 0)),
        "field": answer.get("RateLimit", ""),
    }


def reset(key):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pglimit.reset('login', %s)", [key])
    return []


with ThreadPoolExecutor(8) as pool:
    for line in sys.stdin:
        do = json.loads(line)
        if do["op"] == "reset":
            answers = reset(do["key"])
        else:
            answers = list(pool.map(lambda _: hit(do["key"], do["id"]), range(do["n"])))
        print(json.dumps(answers), flush=True)
