package contender

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// bucketScript takes a token if there is one. The hash has the number of tokens and its
// time in microseconds, by the caller's clock, as is usual. So callers whose clocks differ
// must not drain it by that.
const bucketScript = `
local size, per_us, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local had = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(had[1]), tonumber(had[2])
if tokens == nil then
  tokens, at = size, now
elseif now > at then
  tokens = math.min(size, tokens + (now - at) * per_us)
  at = now
end
local taken = 0
if tokens >= 1 then
  tokens, taken = tokens - 1, 1
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'at', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(size / per_us / 1000) + 1000))
return {taken, math.floor(tokens)}
`

// luaBucket is the script that tutorials teach, over a client that pipelines many callers'
// commands.
var luaBucket = Contender{
	ID: "lua-rueidis", Redis: true,
	Open: func(e *Env, r Rule) (Decider, error) {
		perUs := float64(r.Limit) / float64(r.Period.Microseconds())
		return &luaDecider{
			client: e.Rueidis, script: rueidis.NewLuaScript(bucketScript), burst: r.Burst, perUs: perUs,
			size: strconv.Itoa(r.Burst), perUsText: strconv.FormatFloat(perUs, 'g', -1, 64),
		}, nil
	},
}

type luaDecider struct {
	client          rueidis.Client
	script          *rueidis.Lua
	burst           int
	perUs           float64 // tokens that come back
	size, perUsText string
}

func (d *luaDecider) Decide(ctx context.Context, key string) (float64, error) {
	now := strconv.FormatInt(time.Now().UnixMicro(), 10)
	return taken(d.script.Exec(ctx, d.client, []string{"bucket:" + key}, []string{d.size, d.perUsText, now}))
}

func (d *luaDecider) Used(ctx context.Context, key string) (float64, error) {
	fields, err := d.client.Do(ctx, d.client.B().Hgetall().Key("bucket:"+key).Build()).AsStrMap()
	if err != nil || len(fields) == 0 {
		return 0, err
	}
	tokens, err1 := strconv.ParseFloat(fields["tokens"], 64)
	at, err2 := strconv.ParseInt(fields["at"], 10, 64)
	back := float64(time.Now().UnixMicro()-at) * d.perUs
	return max(0, float64(d.burst)-tokens-back), errors.Join(err1, err2)
}

// taken reads a script's answer: the units allowed, 0 or 1, and the tokens left.
func taken(r rueidis.RedisResult) (float64, error) {
	answer, err := r.AsIntSlice()
	if err == nil && len(answer) != 2 {
		err = fmt.Errorf("the script answered %v", answer)
	}
	if err != nil {
		return 0, err
	}
	return float64(answer[0]), nil
}
