package purge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// maxAfter bounds what a target may ask for; beyond it the caller's own schedule
// decides.
const maxAfter = 24 * time.Hour

// retry tries until the target answers, refuses for good, or was tried often
// enough. It counts the tries.
func (c *Caller) retry(ctx context.Context, t Target, tries *int, try func(context.Context, *exchange) (outcome, error)) (outcome, error) {
	wait := c.c.RetryWait
	for {
		*tries++
		once, cancel := context.WithTimeout(ctx, t.Timeout)
		once, x := withExchange(once)
		out, err := try(once, x)
		cancel()
		if err == nil {
			return out, nil
		}
		if ctx.Err() != nil {
			return outcome{}, fmt.Errorf("calling a purge target: %w", ctx.Err())
		}
		var e *CallError
		if !errors.As(err, &e) || !transient[e.Code] {
			return outcome{}, err
		}
		// Half of the wait is random, so that workers that were refused together
		// do not come back together.
		pause := wait/2 + rand.N(wait/2+1)
		if asked, ok := retryAfter(x.after, c.c.Clock.Now()); ok {
			pause, e.After = asked, asked
		}
		if *tries >= c.c.Tries || pause > c.c.MaxRetryWait {
			return outcome{}, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return outcome{}, fmt.Errorf("calling a purge target: %w", ctx.Err())
		case <-timer.C:
		}
		wait = min(2*wait, c.c.MaxRetryWait)
	}
}

// retryAfter reads both forms of the header, seconds and a date.
func retryAfter(header string, now time.Time) (time.Duration, bool) {
	if header == "" {
		return 0, false
	}
	if s, err := strconv.ParseInt(header, 10, 32); err == nil && s >= 0 {
		return min(time.Duration(s)*time.Second, maxAfter), true
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(at.Sub(now), 0), maxAfter), true
	}
	return 0, false
}
