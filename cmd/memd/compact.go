package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// compactCmd takes the bytes of deleted rows out of the database's files.
type compactCmd struct {
	Plan     compactPlanCmd     `cmd:"" help:"Show the tables, and for how long a rewrite would lock each."`
	Run      compactRunCmd      `cmd:"" help:"Compact now, and wait until it is done."`
	Status   compactStatusCmd   `cmd:"" help:"Show how far compactions are, and what of the write-ahead log remains."`
	Pause    compactPauseCmd    `cmd:"" help:"Break off what is under way and have nothing begin."`
	Resume   compactResumeCmd   `cmd:"" help:"Go on."`
	Schedule compactScheduleCmd `cmd:"" help:"Say how often compactions run, and in which window. Without flags, show it."`
}

// errNotCompacted: the exit status says that something is not as it was asked for.
var errNotCompacted = errors.New("not every table was compacted")

type compactPlanCmd struct {
	outputFlags
	serverFlags
}

// Run shows the plan and changes nothing.
func (c *compactPlanCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Compact.PlanCompaction(ctx, &memdv1.PlanCompactionRequest{})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printPlan(con, resp.GetTables())
}

func printPlan(con *console, tables []*memdv1.TablePlan) error {
	t := newTable(con.Stdout, "TABLE", "BYTES", "DEAD ROWS", "REWRITE LOCKS FOR", "AND NEEDS FREE", "PERMITTED")
	var all, longest time.Duration
	var refused int64
	for _, x := range tables {
		locks, needs := "-", "-"
		if x.GetContent() {
			d := x.GetLocked().AsDuration()
			all, longest = all+d, max(longest, d)
			locks, needs = "about "+d.String(), strconv.FormatInt(x.GetNeedsBytes(), 10)
		}
		if !x.GetPermitted() {
			refused++
		}
		t.row(x.GetName(), strconv.FormatInt(x.GetBytes(), 10), strconv.FormatInt(x.GetDeadRows(), 10), locks, needs, yesNo(x.GetPermitted()))
	}
	if err := t.close(); err != nil {
		return err
	}
	con.notef("A rewrite locks tables for about %v in all, one after the other, and the largest for about %v. A vacuum locks nobody out.", all, longest)
	if refused > 0 {
		con.notef("memd_maintain may not vacuum %s: docs/manual/compaction.md says what to grant.", plural(refused, "table", "tables"))
	}
	return nil
}

type compactRunCmd struct {
	Rewrite bool          `help:"Make the files of tables with sealed values anew. It locks each meanwhile: see memd compact plan."`
	Wait    time.Duration `default:"1h" help:"How long to wait for the end; 0s does not."`
	outputFlags
	serverFlags
}

// Run asks for a compaction and waits for it. It fails when a table was not
// compacted.
func (c *compactRunCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	mode := memdv1.CompactionMode_COMPACTION_MODE_VACUUM
	if c.Rewrite {
		mode = memdv1.CompactionMode_COMPACTION_MODE_REWRITE
		plan, err := server.Compact.PlanCompaction(ctx, &memdv1.PlanCompactionRequest{})
		if err != nil {
			return err
		}
		var all time.Duration
		for _, t := range plan.GetTables() {
			if t.GetContent() {
				all += t.GetLocked().AsDuration()
			}
		}
		con.notef("Tables will be locked for about %v in all, one after the other.", all)
	}
	asked, err := server.Compact.RunCompaction(ctx, &memdv1.RunCompactionRequest{Mode: mode})
	if err != nil {
		return err
	}
	if !asked.GetWorkerThere() {
		con.notef("No worker that compacts was seen in the last two minutes: start one with --compact-url.")
	}
	one, err := c.await(ctx, server, asked.GetNumber())
	if err != nil {
		return err
	}
	if c.JSON {
		err = writeMessage(con.Stdout, one)
	} else {
		err = printCompaction(con, one)
	}
	if err == nil && one.GetState() == memdv1.CompactionState_COMPACTION_STATE_FAILED {
		err = fmt.Errorf("%w: %s", errNotCompacted, one.GetFailure())
	}
	return err
}

// await waits for the end of a compaction, as long as it may, and returns how far it
// is.
func (c *compactRunCmd) await(ctx context.Context, server *clients, number int64) (*memdv1.Compaction, error) {
	end := time.Now().Add(c.Wait)
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for {
		resp, err := server.Compact.GetCompactions(ctx, &memdv1.GetCompactionsRequest{Number: number})
		if err != nil {
			return nil, err
		}
		one := resp.GetCompactions()[0]
		if one.GetState() >= memdv1.CompactionState_COMPACTION_STATE_DONE || !time.Now().Before(end) {
			return one, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

type compactStatusCmd struct {
	Number int64 `arg:"" optional:"" help:"Number of a compaction; the newest if left out."`
	outputFlags
	serverFlags
}

// Run shows where compaction stands.
func (c *compactStatusCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Compact.GetCompactions(ctx, &memdv1.GetCompactionsRequest{Number: c.Number})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	t := newTable(con.Stdout)
	t.row("paused", yesNo(resp.GetPaused()))
	t.row("window open", yesNo(resp.GetWindowOpen()))
	t.row("a worker compacts", yesNo(resp.GetWorkerThere()))
	if err := t.close(); err != nil {
		return err
	}
	if len(resp.GetCompactions()) == 0 {
		con.notef("There was no compaction yet.")
		return nil
	}
	if err := printCompactions(con, resp.GetCompactions()); err != nil {
		return err
	}
	if err := printCompaction(con, resp.GetCompactions()[0]); err != nil {
		return err
	}
	con.notef("%s", walText(resp))
	return nil
}

// walText says what the write-ahead log still has.
func walText(r *memdv1.GetCompactionsResponse) string {
	text := "The write-ahead log from before it has the same sealed bytes: "
	switch {
	case r.GetWalSlots() > 0:
		text += fmt.Sprintf("%s keeps it.", plural(r.GetWalSlots(), "replication slot", "replication slots"))
	case r.GetWalCheckpointed():
		text += "the server no longer needs it and writes over it."
	default:
		text += "the server keeps it until the next checkpoint, and writes over it after."
	}
	if r.GetWalArchived() {
		text += " It is archived too, for as long as the archive keeps it."
	}
	return text
}

func printCompactions(con *console, all []*memdv1.Compaction) error {
	t := newTable(con.Stdout, "NUMBER", "MODE", "BY", "STATE", "ASKED", "BEGAN", "ENDED", "FAILURE")
	for _, x := range all {
		t.row(strconv.FormatInt(x.GetNumber(), 10), modeName(x.GetMode()), enumName(x.GetCause(), "COMPACTION_CAUSE_", true),
			enumName(x.GetState(), "COMPACTION_STATE_", true), formatTime(x.GetRequestedAt()), formatTime(x.GetStartedAt()),
			formatTime(x.GetFinishedAt()), orDash(x.GetFailure()))
	}
	return t.close()
}

// printCompaction shows each table of one.
func printCompaction(con *console, c *memdv1.Compaction) error {
	con.notef("Compaction %d, %s: %s.", c.GetNumber(), modeName(c.GetMode()), enumName(c.GetState(), "COMPACTION_STATE_", true))
	if len(c.GetTables()) == 0 {
		return nil
	}
	t := newTable(con.Stdout, "TABLE", "STATE", "BEFORE", "AFTER", "ANNOUNCED", "LOCKED", "NOW")
	for _, x := range c.GetTables() {
		now := orDash(x.GetFailure())
		if x.GetPhase() != "" {
			now = fmt.Sprintf("%s, block %d of %d", x.GetPhase(), x.GetBlocks(), x.GetBlocksTotal())
		}
		t.row(x.GetName(), enumName(x.GetState(), "TABLE_COMPACTION_STATE_", true), strconv.FormatInt(x.GetBytesBefore(), 10),
			strconv.FormatInt(x.GetBytesAfter(), 10), durationOrDash(x.GetAnnounced()), durationOrDash(x.GetBlocked()), now)
	}
	return t.close()
}

func modeName(m memdv1.CompactionMode) string { return enumName(m, "COMPACTION_MODE_", true) }

func durationOrDash(d *durationpb.Duration) string {
	if d.AsDuration() == 0 {
		return "-"
	}
	return d.AsDuration().String()
}

type compactPauseCmd struct{ serverFlags }

// Run pauses.
func (c *compactPauseCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	if _, err := server.Compact.PauseCompaction(ctx, &memdv1.PauseCompactionRequest{}); err != nil {
		return err
	}
	con.notef("Paused. What is asked for waits; memd compact resume goes on.")
	return nil
}

type compactResumeCmd struct{ serverFlags }

// Run goes on.
func (c *compactResumeCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	if _, err := server.Compact.ResumeCompaction(ctx, &memdv1.ResumeCompactionRequest{}); err != nil {
		return err
	}
	con.notef("Compactions go on.")
	return nil
}

type compactScheduleCmd struct {
	Mode   string         `enum:",vacuum,rewrite" default:"" placeholder:"MODE" help:"What the schedule asks for: vacuum or rewrite."`
	Every  *time.Duration `placeholder:"DURATION" help:"How often, 10m to 8784h; 0s is never."`
	Window string         `placeholder:"HH:MM-HH:MM" help:"The part of the day (UTC) in which the schedule and erasures may compact. 00:00-00:00 is all day."`
	Days   []string       `sep:"," placeholder:"DAY" help:"Days on which the window opens: sun, mon, tue, wed, thu, fri, sat."`
	outputFlags
	serverFlags
}

// Run changes what was given and shows the schedule.
func (c *compactScheduleCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Compact.GetCompactions(ctx, &memdv1.GetCompactionsRequest{Limit: 1})
	if err != nil {
		return err
	}
	s := resp.GetSchedule()
	changed, err := c.change(s)
	if err != nil {
		return err
	}
	if changed {
		if _, err := server.Compact.SetCompactionSchedule(ctx, &memdv1.SetCompactionScheduleRequest{Schedule: s}); err != nil {
			return err
		}
	}
	if c.JSON {
		return writeMessage(con.Stdout, s)
	}
	every := "never"
	if d := s.GetEvery().AsDuration(); d > 0 {
		every = d.String()
	}
	var days []string
	for _, d := range s.GetDays() {
		days = append(days, weekdays[d])
	}
	t := newTable(con.Stdout)
	t.row("mode", modeName(s.GetMode()))
	t.row("every", every)
	t.row("window", clockTime(s.GetStartMinute())+"-"+clockTime((s.GetStartMinute()+s.GetMinutes())%minutesOfDay)+" UTC")
	t.row("days", strings.Join(days, ","))
	return t.close()
}

const minutesOfDay = 24 * 60

var weekdays = [...]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func clockTime(minute int32) string { return fmt.Sprintf("%02d:%02d", minute/60, minute%60) }

// change takes the flags into a schedule and reports whether there were any.
func (c *compactScheduleCmd) change(s *memdv1.CompactionSchedule) (changed bool, err error) {
	switch c.Mode {
	case "vacuum":
		s.Mode = memdv1.CompactionMode_COMPACTION_MODE_VACUUM
	case "rewrite":
		s.Mode = memdv1.CompactionMode_COMPACTION_MODE_REWRITE
	}
	if c.Every != nil {
		s.Every = durationpb.New(*c.Every)
	}
	if c.Window != "" {
		from, to, ok := strings.Cut(c.Window, "-")
		begin, err1 := time.Parse("15:04", from)
		end, err2 := time.Parse("15:04", to)
		if !ok || err1 != nil || err2 != nil {
			return false, usagef("--window must be like 02:00-04:30")
		}
		s.StartMinute = int32(begin.Hour()*60 + begin.Minute())
		s.Minutes = (int32(end.Hour()*60+end.Minute())-s.GetStartMinute()+minutesOfDay-1)%minutesOfDay + 1
	}
	if len(c.Days) > 0 {
		s.Days = nil
		for _, name := range c.Days {
			day := int32(0)
			for ; day < 7 && weekdays[day] != name; day++ {
			}
			if day == 7 {
				return false, usagef("--days must be of %s", strings.Join(weekdays[:], ", "))
			}
			s.Days = append(s.Days, day)
		}
	}
	return c.Mode != "" || c.Every != nil || c.Window != "" || len(c.Days) > 0, nil
}
