package limiter

import "time"

// clock returns this process's clock in microseconds: Config.Now, else one that
// no setting of the machine's time moves.
func (c *Config) clock() func() int64 {
	if now := c.Now; now != nil {
		return func() int64 { return now().UnixMicro() }
	}
	start := time.Now()
	return func() int64 { return time.Since(start).Microseconds() }
}
