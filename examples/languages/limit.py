"""Usage: limit.py KEY. Exit code 0: allowed; 1: denied. PGLIMIT_URL names the server."""

import json
import os
import sys
import urllib.request


def allow(policy, key, cost=1):
    request = urllib.request.Request(
        os.environ["PGLIMIT_URL"] + "/v1/allow",
        json.dumps({"policy": policy, "key": key, "cost": cost}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("PGLIMIT_TOKEN", "")},
    )
    with urllib.request.urlopen(request, timeout=2) as answer:
        return json.load(answer)


if __name__ == "__main__":
    result = allow("login", sys.argv[1])
    print("allowed" if result["allowed"] else f"denied, again in {result['retry_after_s']} s")
    sys.exit(not result["allowed"])
