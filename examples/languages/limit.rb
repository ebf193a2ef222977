# Usage: limit.rb KEY. Exit code 0: allowed; 1: denied. PGLIMIT_URL names the server.
require "json"
require "net/http"

def allow(policy, key, cost = 1)
  uri = URI(ENV.fetch("PGLIMIT_URL") + "/v1/allow")
  headers = { "Content-Type" => "application/json", "Authorization" => "Bearer #{ENV["PGLIMIT_TOKEN"]}" }
  answer = Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == "https", open_timeout: 2, read_timeout: 2) do |http|
    http.post(uri.path, { policy: policy, key: key, cost: cost }.to_json, headers)
  end
  answer.value # raises unless the status is 2xx
  JSON.parse(answer.body)
end

result = allow("login", ARGV.fetch(0))
puts result["allowed"] ? "allowed" : "denied, again in #{result["retry_after_s"]} s"
exit result["allowed"]
