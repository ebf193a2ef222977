"""pglimit as a storage of the library limits, which Flask-Limiter and others use.

    import flask_limiter_storage  # registers the scheme pglimit

    Limiter(get_remote_address, app=app, storage_uri="pglimit://user@host/database", strategy="moving-window")

Each call is one statement over psycopg 3 and stores.sql. README.md beside this file says more.
Fixed windows count every hit, also those above the limit, and limits compares; a moving window is
pglimit's sliding_window_log, and a sliding window counter its sliding_window_counter: those two
decide in the database and count no denial. While PostgreSQL is away, calls raise psycopg.Error.
"""

import contextlib
import hashlib
import math
import queue
import time
import uuid

import limits.storage
import psycopg
from limits.storage import MovingWindowSupport, Storage
from psycopg.rows import dict_row

# limits has it from version 4 on.
SlidingWindowCounterSupport = getattr(limits.storage, "SlidingWindowCounterSupport", None) or getattr(
    limits.storage.base, "SlidingWindowCounterSupport", object
)
UNLIMITED = 2**53  # where a reading call has no limit


def fit(key):
    """Returns a key that PostgreSQL can store: 1 to 1,024 bytes without NUL. Others become a hash."""
    data = key.encode("utf-8", "surrogateescape")
    try:
        if 1 <= len(data) <= 1024 and b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        pass
    return "sha256:" + hashlib.sha256(data).hexdigest()


class PglimitStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Options, as arguments or storage_options: name stands for the policy's name in pglimit top;
    connections is the most there are, made with the first calls, so after a server has forked; timeout_s bounds each wait; retries is how often a
    statement whose answer was lost is sent again, under an idempotency key, so it counts once."""

    STORAGE_SCHEME = ["pglimit"]

    def __init__(self, uri, wrap_exceptions=False, name="flask", connections=10, timeout_s=2, retries=1, **options):
        try:
            super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        except TypeError:  # limits before 3
            super().__init__(uri, **options)
        self.name, self.retries, timeout_s = name, int(retries), float(timeout_s)
        self.uri = "postgresql" + uri[len("pglimit") :]
        self.bounds = {
            "autocommit": True,
            "row_factory": dict_row,
            "prepare_threshold": None,  # for poolers such as PgBouncer
            "connect_timeout": math.ceil(timeout_s),
            "options": f"-c statement_timeout={math.ceil(timeout_s * 1000)}",
            "keepalives": 1,
            "tcp_user_timeout": math.ceil(timeout_s * 1000),
        }
        self.timeout_s = timeout_s
        self.idle = queue.Queue()  # None where no connection is made yet
        for _ in range(int(connections)):
            self.idle.put(None)

    @contextlib.contextmanager
    def connection(self):
        """A connection that stays open for the next call, unless it is lost. A call waits at most
        timeout_s for one. With an outage it fails at once, where a psycopg_pool would wait."""
        try:
            connection = self.idle.get(timeout=self.timeout_s)
        except queue.Empty:
            raise psycopg.OperationalError("pglimit: all connections are in use") from None
        try:
            connection = connection or psycopg.connect(self.uri, **self.bounds)
            yield connection
        finally:
            lost = connection is not None and connection.closed
            self.idle.put(None if lost else connection)
            if lost:
                self.forget_idle()

    def forget_idle(self):
        """Closes the idle connections: if one is lost, so may be the others."""
        seen = []
        with contextlib.suppress(queue.Empty):
            while True:
                seen.append(self.idle.get_nowait())
        for connection in seen:
            if connection is not None:
                connection.close()
            self.idle.put(None)

    @property
    def base_exceptions(self):
        return psycopg.Error

    def ask(self, sql, *args):
        """Runs a statement and returns its row. It is sent again if it was lost: it reads, resets
        or has an idempotency key."""
        for tries in range(self.retries + 1):
            try:
                with self.connection() as connection:
                    return connection.execute(sql, args).fetchone()
            except (psycopg.OperationalError, psycopg.InterfaceError):  # a mistake is another class
                if tries == self.retries:
                    raise

    def idempotency_key(self):
        return str(uuid.uuid4()) if self.retries else None

    def acquire(self, algorithm, key, limit, expiry, amount):
        sql = "SELECT allowed FROM pglimit_store.acquire(%s, %s, %s, %s, %s, %s, %s, 60)"
        return self.ask(sql, algorithm, self.name, fit(key), amount, limit, expiry, self.idempotency_key())["allowed"]

    # Fixed windows

    def incr(self, key, expiry, elastic_expiry=False, amount=1):
        if elastic_expiry:
            raise NotImplementedError("pglimit: a window's end does not move: use the strategy moving-window")
        sql = "SELECT level FROM pglimit_store.hit(%s, %s, %s, %s, %s, 60)"
        return int(self.ask(sql, self.name, fit(key), amount, expiry, self.idempotency_key())["level"])

    def get(self, key):
        return int(self.ask("SELECT level FROM pglimit_store.hits(%s, %s)", self.name, fit(key))["level"])

    def get_expiry(self, key):
        row = self.ask("SELECT reset_after_s FROM pglimit_store.hits(%s, %s)", self.name, fit(key))
        return math.ceil(time.time() + row["reset_after_s"])

    # Moving windows

    def acquire_entry(self, key, limit, expiry, amount=1):
        return self.acquire("sliding_window_log", key, limit, expiry, amount)

    def get_moving_window(self, key, limit, expiry):
        # The oldest entry's time is over when one unit more than now would fit.
        sql = """SELECT used.level, more.retry_after_s
            FROM pglimit.check_with('sliding_window_log', %s, %s, 0, %s, %s) AS used,
                 LATERAL pglimit.check_with('sliding_window_log', %s, %s, LEAST(%s, floor(used.remaining) + 1), %s, %s) AS more"""
        one = (self.name, fit(key))
        row = self.ask(sql, *one, limit, expiry, *one, limit, limit, expiry)
        start = time.time() + (row["retry_after_s"] - expiry if row["level"] else 0)
        return int(start), math.ceil(row["level"])

    # Sliding window counters

    def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self.acquire("sliding_window_counter", key, limit, expiry, amount)

    def get_sliding_window(self, key, expiry):
        """Returns the weighted count as the present window's: (0, 0, count, seconds)."""
        sql = "SELECT level, reset_after_s FROM pglimit.check_with('sliding_window_counter', %s, %s, 0, %s, %s)"
        row = self.ask(sql, self.name, fit(key), UNLIMITED, expiry)
        return 0, 0.0, math.ceil(row["level"]), min(row["reset_after_s"], expiry - 0.001)

    def clear_sliding_window(self, key, expiry):
        self.clear(key)

    # All

    def check(self):
        try:
            return self.ask("SELECT 1 AS one")["one"] == 1
        except psycopg.Error:
            return False

    def clear(self, key):
        self.ask("SELECT pglimit_store.forget(%s, %s)", self.name, fit(key))

    def reset(self):
        return self.ask("SELECT pglimit_store.forget_all(%s) AS keys", self.name)["keys"]
