//go:build !linux

package measure

import "time"

func sleepUntil(t time.Time) { time.Sleep(time.Until(t)) }
