"""Usage: limit.py KEY... Exit code 0: all allowed; 1: one denied. PGLIMIT_URL names the server."""

import http.client
import json
import os
import sys
import urllib.parse
import uuid


class Limiter:
    """Asks over one connection, which stays open. Each thread needs its own."""

    def __init__(self, url, token=""):
        url = urllib.parse.urlsplit(url)
        connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self.connection = connect(url.netloc, timeout=2)
        self.path = url.path + "/v1/allow"
        self.headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}

    def allow(self, policy, key, cost=1):
        # Without an answer the request may have been counted: the same key counts it once.
        headers = {**self.headers, "Idempotency-Key": str(uuid.uuid4())}
        for last in (False, True):
            try:
                self.connection.request("POST", self.path, json.dumps({"policy": policy, "key": key, "cost": cost}), headers)
                answer = self.connection.getresponse()
                text = answer.read()
                if answer.status < 500 or last:
                    break
            except (OSError, http.client.HTTPException):
                self.connection.close()  # the next request connects again
                if last:
                    raise
        if answer.status != 200:
            raise RuntimeError(text.decode())
        return json.loads(text)


if __name__ == "__main__":
    limiter = Limiter(os.environ["PGLIMIT_URL"], os.environ.get("PGLIMIT_TOKEN", ""))
    results = [limiter.allow("login", key) for key in sys.argv[1:]]
    for result in results:
        print("allowed" if result["allowed"] else f"denied, again in {result['retry_after_s']} s")
    sys.exit(not all(result["allowed"] for result in results))
