package embed

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// retryableError marks an error after which the same request may succeed, and
// carries the endpoint's wish for how long to wait.
type retryableError struct {
	err   error
	after string // the Retry-After header
}

func (e *retryableError) Error() string { return e.err.Error() }
func (e *retryableError) Unwrap() error { return e.err }

// retry calls f until it succeeds, fails for good, or has been repeated
// Retries times. It returns the last error, or the context's.
func (o *openAI) retry(ctx context.Context, f func(context.Context) error) error {
	wait := o.cfg.RetryWait
	for try := 0; ; try++ {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var again *retryableError
		if !errors.As(err, &again) || try >= o.cfg.Retries {
			return err
		}
		// Half of the wait is random, so that replicas that were refused
		// together do not come back together.
		pause := wait/2 + rand.N(wait/2+1)
		if asked, ok := retryAfter(again.after, time.Now()); ok {
			if asked > o.cfg.MaxRetryWait {
				return err
			}
			pause = asked
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		wait = min(2*wait, o.cfg.MaxRetryWait)
	}
}

// retryAfter reads both forms of the header: seconds and a date.
func retryAfter(header string, now time.Time) (time.Duration, bool) {
	if header == "" {
		return 0, false
	}
	if s, err := strconv.ParseInt(header, 10, 32); err == nil {
		return time.Duration(max(s, 0)) * time.Second, true
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}
