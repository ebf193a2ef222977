# Drives stores/rack.rb: "rails" is the middleware in a Rails application over Active Record's
# connections, "attack" the store in the real Rack::Attack.
require "json"
require "rack"
require File.join(ENV.fetch("STORES"), "rack")

ON_ERROR = (ENV["ON_ERROR"] || "fail_closed").to_sym

def rails
  require "rails"
  require "action_controller/railtie"
  require "active_record"
  ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
  application = Class.new(Rails::Application) do
    config.eager_load = false
    config.logger = Logger.new(IO::NULL)
    config.secret_key_base = "0" * 64
    config.hosts.clear
    config.middleware.use Pglimit::Limit, pool: Pglimit::ActiveRecordPool.new, policy: "login", on_error: ON_ERROR,
      key: ->(request) { request.params["key"] }, idempotency_key: ->(request) { request.get_header("HTTP_X_TASK") }
    routes.append { root to: ->(_) { [200, {}, ["done"]] } }
  end
  [application.initialize!, ->(key) { ActiveRecord::Base.connection_pool.with_connection { |c| c.raw_connection.exec_params("SELECT pglimit.reset('login', $1)", [key]) } }]
end

def attack
  require "rack/attack"
  pool = Pglimit::Pool.new(ENV.fetch("DATABASE_URL"), timeout_s: 60)
  # Windows begin at multiples of the period: of this one, no test meets the end.
  Rack::Attack.throttle("login", limit: 5, period: 4_000_000_000) { |request| request.params["key"] }
  Rack::Attack.throttled_responder = lambda do |request|
    data = request.env["rack.attack.match_data"]
    [429, { "retry-after" => (data[:period] - data[:epoch_time] % data[:period]).to_s }, []]
  end
  Rack::Attack.cache.store = Pglimit::AttackStore.new(pool, on_error: ON_ERROR)
  if ENV["ON_ERROR"].nil? # what Fail2Ban does
    name, ban = "mallory-#{Process.pid}", { maxretry: 2, findtime: 4_000_000_000, bantime: 1_000_000 }
    seen = 3.times.map { Rack::Attack::Fail2Ban.filter(name, ban) { true } && Rack::Attack::Fail2Ban.banned?(name) }
    raise "Fail2Ban: #{seen}" unless seen == [false, true, true]

    Rack::Attack::Fail2Ban.reset(name, ban)
    raise "Fail2Ban forgets nothing" if Rack::Attack::Fail2Ban.banned?(name)
  end
  app = Rack::Attack.new(->(_) { [200, {}, ["done"]] })
  [app, ->(key) { Rack::Attack.cache.reset_count("login:#{key}", 4_000_000_000) }]
end

app, reset = ARGV[0] == "rails" ? rails : attack
hit = lambda do |key, id|
  env = Rack::MockRequest.env_for("/?#{Rack::Utils.build_query("key" => key)}")
  env["HTTP_X_TASK"] = id if id != ""
  status, headers, body = app.call(env)
  body.close if body.respond_to?(:close)
  { status: status, retry_after: headers["retry-after"].to_f, field: headers["ratelimit"].to_s }
rescue Pglimit::Unavailable => e
  warn e.message
  { status: 503 }
end

$stdin.each_line do |line|
  op, key, id, n = JSON.parse(line).values_at("op", "key", "id", "n")
  answers = op == "reset" ? (reset.(key); []) : n.times.map { Thread.new { hit.(key, id) } }.map(&:value)
  $stdout.puts(JSON.generate(answers))
  $stdout.flush
end
