package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// watchInterval is how often the journal is looked at for a watcher. It is asked
// of the database, so that any replica can show what any worker does.
const watchInterval = time.Second

const (
	// MaxWatch is how long one watcher is told. Whoever wants to know more asks
	// again.
	MaxWatch = 50 * time.Minute
	// stillInterval is how often it is asked whether a watcher may still watch.
	stillInterval = 5 * time.Second
)

// heartbeat is how often a watcher is told where the erasure stands although
// nothing has changed: what is silent for long is cut off on the way.
const heartbeat = 15 * time.Second

// Event is a change of an erasure: a step that began or ended, or the erasure
// itself when it got to another state, was held, let go, or stopped.
type Event struct {
	Job Job
	// Step is StepUnknown when it is the erasure that changed.
	Step              Step
	Done              bool
	Started, Finished time.Time
}

// Watch calls tell for every change of an erasure, from its acceptance on: what
// has happened before is told first. It returns nil when the erasure is final,
// or done if that is enough, after MaxWatch, and when the process ends; otherwise
// ctx's error, that of tell, or memd.ErrNotFound. still, if not nil, is asked every
// few seconds whether the caller may watch on; an error of it that is not
// transient ends the watch and is returned.
func (s *Service) Watch(ctx context.Context, c Caller, id uuid.UUID, untilDone bool, still func(context.Context) error, tell func(Event) error) error {
	w := watch{told: map[Step]stepRow{}, tell: tell}
	end := time.NewTimer(MaxWatch)
	defer end.Stop()
	asked := time.Now()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		var j Job
		var steps map[Step]stepRow
		err := s.Pool.With(ctx, func(db pg.DB) (err error) {
			// The state first: a step that is told with it is in the journal.
			if j, err = Read(ctx, db, c.Tenant, id); err == nil {
				steps, err = readSteps(ctx, db, c.Tenant, id)
			}
			return err
		})
		switch {
		case err == nil:
			if err := w.tellAll(j, steps); err != nil {
				return err
			}
			if j.State == StateFinal || untilDone && j.State == StateDone {
				return nil
			}
		case errors.Is(err, memd.ErrNotFound), !memd.Transient(err):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Closing:
			return nil
		case <-end.C:
			return nil
		case <-tick.C:
		}
		if still != nil && time.Since(asked) > stillInterval {
			asked = time.Now()
			if err := still(ctx); err != nil && !memd.Transient(err) {
				return err
			}
		}
	}
}

// watch is what one watcher has been told.
type watch struct {
	told map[Step]stepRow
	last Job
	at   time.Time // of the last event of the erasure itself
	tell func(Event) error
}

func (w *watch) tellAll(j Job, steps map[Step]stepRow) error {
	for _, s := range j.Kind.Steps() {
		now, ok := steps[s]
		before, told := w.told[s]
		if !ok || told && before.Done == now.Done {
			continue
		}
		w.told[s] = now
		e := Event{Job: j, Step: s, Done: now.Done, Started: now.Started, Finished: timeOf(now.Finished)}
		if err := w.tell(e); err != nil {
			return err
		}
	}
	if j.State == w.last.State && j.Held == w.last.Held && j.Failure == w.last.Failure && time.Since(w.at) < heartbeat {
		return nil
	}
	w.last, w.at = j, time.Now()
	return w.tell(Event{Job: j})
}
