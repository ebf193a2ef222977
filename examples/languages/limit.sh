#!/bin/sh
# Usage: limit.sh KEY. Exit code 0: allowed; 1: denied. PGLIMIT_URL names the server. Each call
# connects anew. Without an answer the request may have been counted: curl sends it once more, and
# the same Idempotency-Key counts it once.
set -eu
once=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
answer=$(curl --silent --show-error --fail-with-body --max-time 2 --retry 1 --retry-all-errors \
	--header "Authorization: Bearer ${PGLIMIT_TOKEN:-}" --header 'Content-Type: application/json' --header "Idempotency-Key: $once" \
	--data "{\"policy\":\"login\",\"key\":\"$1\"}" "$PGLIMIT_URL/v1/allow")
case $answer in
*'"allowed":true'*) echo allowed ;;
*) echo "denied, again in $(printf %s "$answer" | sed 's/.*"retry_after_s":\([^,]*\),.*/\1/') s"; exit 1 ;;
esac
