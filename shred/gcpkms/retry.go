package gcpkms

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sethvargo/go-retry"

	"forgettable.dev/memd"
)

// do runs one call with its repetitions. try makes one attempt under the
// context it is given and returns an error of the gRPC client or of this
// package; classify decides what it means and whether to try again.
//
// The context given to try ends with the attempt, the call's total and the
// caller's own, whichever is first, so that the last attempt does not outlive
// the bound.
func (c *Client) do(ctx context.Context, method string, try func(context.Context) error) error {
	total, cancel := context.WithTimeout(ctx, c.cfg.MaxElapsed)
	defer cancel()
	delays := retry.WithFullJitter(retry.WithCappedDuration(c.cfg.MaxBackoff, retry.NewExponential(c.cfg.InitialBackoff)))
	var last error
	for {
		err, again := c.attempt(total, method, try)
		switch {
		case err == nil:
			return nil
		case !again && !errors.Is(err, memd.ErrKeyUnavailable):
			// An answer, also when the caller has gone meanwhile.
			return fmt.Errorf("KMS %s: %w", method, err)
		case ctx.Err() != nil:
			return interrupted(method, ctx.Err())
		case !again:
			return fmt.Errorf("KMS %s: %w", method, err)
		}
		delay, _ := delays.Next()
		if wait(total, delay) {
			last = err
			continue
		}
		if ctx.Err() != nil {
			return interrupted(method, ctx.Err())
		}
		if last != nil && timedOut(err) {
			// Our own bound cut the last attempt short. What the KMS said in
			// the one before tells more.
			err = last
		}
		return fmt.Errorf("KMS %s: gave up after %v: %w", method, c.cfg.MaxElapsed, err)
	}
}

func (c *Client) attempt(ctx context.Context, method string, try func(context.Context) error) (error, bool) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	start := time.Now()
	err, again := classify(method, try(ctx))
	c.cfg.OnCall(method, err, time.Since(start))
	return err, again
}

// interrupted reports a call that the caller's own context ended: the KMS was
// not asked to the end, so nothing is known about the key.
func interrupted(method string, cause error) error {
	return fmt.Errorf("KMS %s: %w: %w", method, memd.ErrKeyUnavailable, cause)
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
