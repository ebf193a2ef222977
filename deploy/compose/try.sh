# Sends requests until one is limited, by nginx and by Envoy's rate limit service.
set -u
curl --silent --show-error --output /dev/null --retry 30 --retry-delay 1 --retry-connrefused http://nginx:8000/healthz
i=1
while [ $i -le 20 ]; do
	answer=$(curl --silent --show-error --output /dev/null --write-out '%{http_code} %header{retry-after}' http://nginx:8000/)
	echo "request $i: ${answer% }"
	case $answer in
	429*) break ;;
	esac
	i=$((i + 1))
done
case $answer in
429*) echo "limited: the next request passes in ${answer#429 } s" ;;
*) echo "no request was limited" >&2 && exit 1 ;;
esac

request='{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}'
echo "ratelimit: $(curl --silent --show-error --data "$request" http://ratelimit:8080/json)"
