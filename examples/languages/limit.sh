#!/bin/sh
# Usage: limit.sh KEY. Exit code 0: allowed; 1: denied. PGLIMIT_URL names the server.
set -eu
answer=$(curl --silent --show-error --fail-with-body --max-time 2 \
	--header "Authorization: Bearer ${PGLIMIT_TOKEN:-}" --header 'Content-Type: application/json' \
	--data "{\"policy\":\"login\",\"key\":\"$1\"}" "$PGLIMIT_URL/v1/allow")
case $answer in
*'"allowed":true'*) echo allowed ;;
*) echo "denied, again in $(printf %s "$answer" | sed 's/.*"retry_after_s":\([^,]*\),.*/\1/') s"; exit 1 ;;
esac
