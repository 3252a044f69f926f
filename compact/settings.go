package compact

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Settings say when compactions run, in the whole installation.
type Settings struct {
	Schedule
	// Paused: nothing begins, and what was under way is broken off and waits.
	Paused bool
	// SeenAt is when a worker that compacts was last there; zero if never.
	SeenAt time.Time
}

// Schedule is when compactions run by themselves, and in which part of the day what
// was not asked for by an operator may run.
type Schedule struct {
	Mode Mode
	// Every is how often; 0 is never.
	Every time.Duration
	// Start and Length are the window, from midnight UTC; a whole day by default.
	Start, Length time.Duration
	// Days of the window's beginning; bit 0 is Sunday.
	Days uint8
}

const allDays = 1<<7 - 1

// Validate returns a memd.InvalidError that names the first field that is wrong.
func (s Schedule) Validate() error {
	refuse := func(field, problem string) error {
		return &memd.InvalidError{Field: "schedule." + field, Problem: problem}
	}
	switch {
	case s.Mode != Vacuum && s.Mode != Rewrite:
		return refuse("mode", "must be vacuum or rewrite")
	case s.Every != 0 && (s.Every < 10*time.Minute || s.Every > 366*24*time.Hour || s.Every%time.Second != 0):
		return refuse("every", "must be 0, which is never, or from 10 minutes to 366 days, in whole seconds")
	case s.Start < 0 || s.Start >= 24*time.Hour || s.Start%time.Minute != 0:
		return refuse("start", "must be a minute of the day")
	case s.Length < time.Minute || s.Length > 24*time.Hour || s.Length%time.Minute != 0:
		return refuse("length", "must be from 1 minute to 24 hours, in whole minutes")
	case s.Days == 0 || s.Days > allDays:
		return refuse("days", "must be days of the week, at least one")
	}
	return nil
}

// Open reports whether the window is open, and otherwise how long it stays shut.
func (s Schedule) Open(now time.Time) (open bool, wait time.Duration) {
	now = now.UTC()
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	for day := -1; day <= 7; day++ { // A window of yesterday may go past midnight.
		begin := midnight.AddDate(0, 0, day).Add(s.Start)
		if s.Days&(1<<begin.Weekday()) == 0 || !now.Before(begin.Add(s.Length)) {
			continue
		}
		return !now.Before(begin), max(0, begin.Sub(now))
	}
	return false, 24 * time.Hour // Unreachable with a valid schedule.
}

const sqlSettings = `
SELECT mode, every_seconds, window_start, window_minutes, days, paused, seen_at FROM memd.compaction_settings`

// ReadSettings returns the settings.
func ReadSettings(ctx context.Context, db pg.DB) (Settings, error) {
	var s Settings
	var every, start, length int64
	var days int16
	var seen *time.Time
	if err := db.QueryRow(ctx, sqlSettings).Scan(&s.Mode, &every, &start, &length, &days, &s.Paused, &seen); err != nil {
		return s, fmt.Errorf("reading the settings of compaction: %w", err)
	}
	s.Every, s.Start, s.Length = time.Duration(every)*time.Second, time.Duration(start)*time.Minute, time.Duration(length)*time.Minute
	s.Days, s.SeenAt = uint8(days), timeOf(seen)
	return s, nil
}

const sqlSetSchedule = `
UPDATE memd.compaction_settings SET mode = @mode, every_seconds = @every, window_start = @start, window_minutes = @length, days = @days,
  changed_by = @by, changed_at = @now`

// SetSchedule changes the schedule. It returns a memd.InvalidError for one that
// cannot be.
func SetSchedule(ctx context.Context, db pg.DB, s Schedule, by uuid.UUID, now time.Time) error {
	if err := s.Validate(); err != nil {
		return err
	}
	_, err := db.Exec(ctx, sqlSetSchedule, pg.Args{
		"mode": s.Mode, "every": int64(s.Every / time.Second), "start": int64(s.Start / time.Minute), "length": int64(s.Length / time.Minute),
		"days": int16(s.Days), "by": by, "now": now,
	})
	if err != nil {
		return fmt.Errorf("changing the schedule of compaction: %w", err)
	}
	return nil
}

const sqlPause = `UPDATE memd.compaction_settings SET paused = @paused, changed_by = @by, changed_at = @now`

// Pause has compactions stop, within a second or so, or go on. Safe to repeat.
func Pause(ctx context.Context, db pg.DB, paused bool, by uuid.UUID, now time.Time) error {
	if _, err := db.Exec(ctx, sqlPause, pg.Args{"paused": paused, "by": by, "now": now}); err != nil {
		return fmt.Errorf("pausing compaction: %w", err)
	}
	return nil
}
