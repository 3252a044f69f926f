package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"forgettable.dev/memd"
)

// past is the clock of a server to which conversations are told as they were
// held: a conversation is of the month in which it begins.
type past struct{ now atomic.Pointer[time.Time] }

// Now implements memd.Clock.
func (p *past) Now() time.Time { return *p.now.Load() }

func (p *past) set(t time.Time) { p.now.Store(&t) }

// converse keeps every conversation with its file in its own month, takes it into
// memory, and keeps a file of each user's own.
func (d *demo) converse(ctx context.Context) (err error) {
	clock := &past{}
	clock.set(d.began)
	address, closeIt, err := d.dev.ServeAt(ctx, clock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeIt()) }()
	for _, c := range []*customer{d.acme, d.globex} {
		then, err := d.c.Connect("http://"+address, c.key)
		if err != nil {
			return err
		}
		for i := range c.talks {
			talk := &c.talks[i]
			clock.set(talk.StartedAt)
			if err := c.keep(ctx, then, talk); err != nil {
				return fmt.Errorf("keeping a conversation of %s: %w", c.name, err)
			}
			if d.months, err = d.withMonth(talk.StartedAt); err != nil {
				return err
			}
		}
		if err := c.keepOwn(ctx); err != nil {
			return fmt.Errorf("keeping a file of %s: %w", c.name, err)
		}
	}
	d.months, err = d.withMonth(d.began)
	return err
}

// withMonth is the months of the demo with that of t.
func (d *demo) withMonth(t time.Time) ([]memd.Month, error) {
	m, err := memd.MonthOf(t)
	if err != nil {
		return nil, err
	}
	i, found := slices.BinarySearch(d.months, m)
	if found {
		return d.months, nil
	}
	return slices.Insert(d.months, i, m), nil
}

// expired is the month that will be over: the oldest in which anything was said.
func (d *demo) expired() memd.Month { return d.months[0] }
