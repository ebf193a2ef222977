# pglimit in Rack, Rails and rack-attack: a middleware that asks for a decision, and a store for
# rack-attack. Both are one statement a request over the gem pg and stores.sql. README.md beside
# it says more.
#
#   POOL = Pglimit::Pool.new(ENV["DATABASE_URL"], size: 5)
#   POOL = Pglimit::ActiveRecordPool.new   # Rails: the application's own connections
require "digest"
require "pg"
require "securerandom"
require "timeout"

module Pglimit

  # Raised when PostgreSQL did not answer, also not when it was asked again.
  class Unavailable < StandardError; end

  # What ended without a decision. Mistakes, such as a policy that does not exist, are not here.
  OUTAGES = [PG::ConnectionBad, PG::UnableToSend, PG::ConnectionException, PG::OperatorIntervention, PG::InsufficientResources,
    PG::TransactionRollback, PG::LockNotAvailable, PG::ReadOnlySqlTransaction].freeze

  # Up to size connections, which are made when they are needed and stay open. No wait is longer
  # than timeout_s: for a free connection, for a new one, for an answer.
  class Pool
    def initialize(url, size: 5, timeout_s: 2)
      @url, @timeout_s, @idle = url, timeout_s, Thread::Queue.new
      @bounds = { connect_timeout: timeout_s, options: "-c statement_timeout=#{timeout_s * 1000}", keepalives: 1, keepalives_idle: 30, tcp_user_timeout: timeout_s * 1000 }
      size.times { @idle << nil }
    end

    def with
      c = Timeout.timeout(@timeout_s, PG::ConnectionBad) { @idle.pop }
      begin
        c ||= PG.connect(@url, **@bounds)
        yield c
      ensure
        if c && (c.finished? || c.status != PG::CONNECTION_OK)
          c.close unless c.finished?
          c = nil
          forget_idle
        end
        @idle << c
      end
    end

    private

    # If one is lost, so may be the others.
    def forget_idle
      @idle.size.times do
        @idle.pop(true)&.close
        @idle << nil
      end
    rescue ThreadError
      nil # other callers have the rest
    end
  end

  # The connections of Active Record. statement_timeout and connect_timeout are in database.yml.
  class ActiveRecordPool
    def with
      ActiveRecord::Base.connection_pool.with_connection { |c| yield c.raw_connection }
    end
  end

  class Client
    def initialize(pool, retries: 1)
      @pool, @retries = pool, retries
    end

    # Runs one statement and returns its row. A block gets an idempotency key and how many seconds
    # to remember it, and returns the arguments: with the key, a statement whose answer was lost is
    # sent again and counts once. In an open transaction nothing is sent again.
    def ask(sql, given = nil)
      tries = 0
      args = yield(given || (SecureRandom.uuid if @retries > 0), given ? 86_400 : 60)
      begin
        within = false
        @pool.with do |c|
          within = c.transaction_status != PG::PQTRANS_IDLE
          c.exec_params(sql, args)[0]
        end
      rescue *OUTAGES, *(defined?(ActiveRecord) ? [ActiveRecord::ConnectionNotEstablished] : []) => e
        retry if !within && (tries += 1) <= @retries
        raise Unavailable, "pglimit: PostgreSQL does not answer: #{e.message}"
      end
    end

    # Returns a key that PostgreSQL can store: 1 to 1,024 bytes of UTF-8 without NUL. Others become
    # a hash.
    def self.fit(key)
      text = key.to_s.dup.force_encoding(Encoding::UTF_8)
      return text if text.bytesize.between?(1, 1024) && text.valid_encoding? && !text.include?("\0")

      "sha256:#{Digest::SHA256.hexdigest(text)}"
    end
  end

  def self.fails_open?(on_error)
    raise ArgumentError, "pglimit: on_error is #{on_error.inspect}: must be :fail_closed or :fail_open" unless %i[fail_closed fail_open].include?(on_error)

    on_error == :fail_open
  end

  # A Rack middleware that requests one unit of a policy of pglimit_policy. It sets RateLimit, and
  # answers a denial with 429 and Retry-After.
  #
  #   use Pglimit::Limit, pool: POOL, policy: "login", key: ->(request) { request.ip }
  #
  # key and idempotency_key get a Rack::Request. A nil key is no limit. idempotency_key names the
  # request for a day, by default it has a random name for a minute. Never return what a client
  # sends: a repeated one is not counted. If PostgreSQL is away, on_error :fail_closed, the default, answers 503, and
  # :fail_open passes.
  class Limit
    def initialize(app, pool:, policy:, key: ->(request) { request.ip }, idempotency_key: ->(_) {}, retries: 1, on_error: :fail_closed)
      @app, @client, @policy, @key, @id = app, Client.new(pool, retries: retries), policy, key, idempotency_key
      @open = Pglimit.fails_open?(on_error)
    end

    def call(env)
      request = Rack::Request.new(env)
      key = @key.call(request)
      return @app.call(env) if key.nil?

      begin
        answer = @client.ask("SELECT * FROM pglimit_store.allow($1, $2, 1, $3, $4)", @id.call(request)) { |id, seconds| [@policy, Client.fit(key), id, seconds] }
      rescue Unavailable
        return @open ? @app.call(env) : refuse(503, "The rate limit cannot be checked", "retry-after" => "1")
      end
      allowed = ["t", true].include?(answer["allowed"]) # Active Record maps types
      wait = answer[allowed ? "reset_after_s" : "retry_after_s"]&.to_f&.ceil # nil is never
      field = "\"#{@policy}\";r=#{answer["remaining"].to_f.floor}#{";t=#{wait}" if wait}"
      return refuse(429, "Too many requests", { "ratelimit" => field, "retry-after" => wait&.to_s }.compact) unless allowed

      status, headers, body = @app.call(env)
      headers["ratelimit"] = field # lower case, as in Rack 3
      [status, headers, body]
    end

    private

    def refuse(status, title, headers)
      [status, { "content-type" => "application/problem+json" }.merge(headers), [%({"title":"#{title}","status":#{status}})]]
    end
  end

  # A store for rack-attack:
  #
  #   Rack::Attack.cache.store = Pglimit::AttackStore.new(POOL)
  #
  # It counts every hit in a fixed window, also those above the limit, and rack-attack compares.
  # Values are whole numbers from 1, as throttles, Fail2Ban and Allow2Ban write. If PostgreSQL is
  # away, on_error :fail_closed, the default, raises Unavailable; :fail_open counts nothing, so
  # that all requests pass.
  class AttackStore
    # name stands for the policy's name in pglimit top.
    def initialize(pool, name: "rack-attack", retries: 1, on_error: :fail_closed)
      @client, @name, @open = Client.new(pool, retries: retries), name, Pglimit.fails_open?(on_error)
    end

    def increment(key, amount = 1, expires_in:, **)
      answer = ask("SELECT level FROM pglimit_store.hit($1, $2, $3, $4, $5, $6)") { |id, seconds| [@name, Client.fit(key), amount, expires_in.to_i, id, seconds] }
      answer ? answer["level"].to_i : 0
    end

    def read(key, **)
      level = ask("SELECT level FROM pglimit_store.hits($1, $2)") { [@name, Client.fit(key)] }&.fetch("level").to_i
      level unless level.zero?
    end

    def write(key, value, expires_in:, **)
      raise ArgumentError, "pglimit: value is #{value.inspect}: must be a whole number from 1" unless value.is_a?(Integer) && value >= 1

      ask("SELECT pglimit_store.put($1, $2, $3, $4)") { [@name, Client.fit(key), value, expires_in.to_i] }
      true
    end

    def delete(key, **)
      ask("SELECT pglimit_store.forget($1, $2)") { [@name, Client.fit(key)] }
      true
    end

    # Resets all keys of this store's name: rack-attack's reset! passes its prefix and an asterisk.
    def delete_matched(_pattern, **)
      ask("SELECT pglimit_store.forget_all($1)") { [@name] }
    end

    private

    def ask(sql, &args)
      @client.ask(sql, &args)
    rescue Unavailable
      raise unless @open
    end
  end
end
