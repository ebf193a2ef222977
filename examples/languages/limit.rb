# Usage: limit.rb KEY... Exit code 0: all allowed; 1: one denied. PGLIMIT_URL names the server.
require "json"
require "net/http"
require "securerandom"

# Asks over one connection, which stays open. Each thread needs its own.
class Limiter
  AWAY = [SystemCallError, IOError, Timeout::Error, Net::ProtocolError, OpenSSL::SSL::SSLError].freeze

  def initialize(url, token = nil)
    uri = URI(url)
    @path = "#{uri.path}/v1/allow"
    @headers = { "Content-Type" => "application/json", "Authorization" => "Bearer #{token}" }
    @http = Net::HTTP.new(uri.host, uri.port)
    @http.use_ssl = uri.scheme == "https"
    @http.open_timeout = @http.read_timeout = 2
  end

  # Without an answer the request may have been counted: the same key counts it once.
  def allow(policy, key, cost = 1, once: SecureRandom.uuid, last: false)
    @http.start unless @http.started?
    answer = @http.post(@path, { policy: policy, key: key, cost: cost }.to_json, @headers.merge("Idempotency-Key" => once))
    answer.value # raises unless the status is 2xx
    JSON.parse(answer.body)
  rescue *AWAY => error
    raise if last || error.is_a?(Net::HTTPClientException)

    @http.finish if @http.started?
    allow(policy, key, cost, once: once, last: true)
  end
end

limiter = Limiter.new(ENV.fetch("PGLIMIT_URL"), ENV["PGLIMIT_TOKEN"])
results = ARGV.map { |key| limiter.allow("login", key) }
results.each { |result| puts result["allowed"] ? "allowed" : "denied, again in #{result["retry_after_s"]} s" }
exit(results.all? { |result| result["allowed"] })
