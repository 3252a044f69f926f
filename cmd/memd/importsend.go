package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// Waits of a batch that met passing trouble, and how long it keeps trying.
const (
	firstRetryWait = 100 * time.Millisecond
	maxRetryWait   = 5 * time.Second
	patience       = 2 * time.Minute
)

// sender keeps several batches of turns under way. A user's turns always take
// the same lane, so no two requests at a time write to one user: they would
// only wait for each other in the database.
type sender struct {
	memory   memdv1connect.MemoryServiceClient
	app      string
	batch    int
	lanes    []chan conversation
	progress *progress

	mu       sync.Mutex
	answered bool // by the server, ever
	total    importResult
	refused  map[refusal]int64
}

// refusal is what the server would not store of one line, and why.
type refusal struct {
	line    int
	reason  memdv1.Reason
	message string
}

func newSender(memory memdv1connect.MemoryServiceClient, c *importCmd, p *progress) *sender {
	s := &sender{memory: memory, app: c.App, batch: c.Batch, progress: p, refused: map[refusal]int64{}}
	for range c.Concurrency {
		s.lanes = append(s.lanes, make(chan conversation, 16))
	}
	return s
}

// run sends everything that read hands over. It returns when the last batch was
// answered, or with the first error that is not about single turns.
func (s *sender) run(ctx context.Context, read func(send func(conversation) error) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, lane := range s.lanes {
		group.Go(func() error { return s.lane(ctx, lane) })
	}
	group.Go(func() error {
		defer func() {
			for _, lane := range s.lanes {
				close(lane)
			}
		}()
		return read(func(c conversation) error {
			h := fnv.New32a()
			h.Write([]byte(c.User))
			select {
			case s.lanes[h.Sum32()%uint32(len(s.lanes))] <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return group.Wait()
}

// importRow is a turn that is ready to be sent.
type importRow struct {
	line int
	row  *memdv1.Row
}

// lane collects conversations into batches and sends one at a time.
func (s *sender) lane(ctx context.Context, in <-chan conversation) error {
	var rows []importRow
	users := map[string]struct{}{}
	size := 0
	flush := func() error {
		if len(rows) == 0 {
			return nil
		}
		err := s.send(ctx, rows)
		rows, size = rows[:0], 0
		clear(users)
		return err
	}
	for c := range in {
		s.count(func(r *importResult) {
			r.Conversations++
			r.Turns += int64(len(c.Turns))
			r.Skipped += int64(c.Skipped)
		})
		for _, t := range c.Turns {
			// Half of the limit leaves room for what surrounds the texts.
			_, known := users[c.User]
			if len(rows) == s.batch || size+len(t.Text) > memd.MaxBatchBytes/2 || (!known && len(users) == memd.MaxSubjects) {
				if err := flush(); err != nil {
					return err
				}
			}
			users[c.User] = struct{}{}
			size += len(t.Text)
			rows = append(rows, importRow{line: c.Line, row: s.row(&c, t)})
		}
	}
	if ctx.Err() != nil {
		return ctx.Err() // another lane failed; this one's rest is not wanted
	}
	return flush()
}

func (s *sender) row(c *conversation, t turn) *memdv1.Row {
	row := &memdv1.Row{
		Scope:      userScope(s.app, c.User),
		SessionId:  c.Session,
		Kind:       memdv1.Kind_KIND_RAW,
		Text:       t.Text,
		EventId:    strconv.Itoa(t.Index),
		SourceTime: timestamppb.New(c.StartedAt.Add(time.Duration(t.Index) * time.Second)),
	}
	if t.Author != "" {
		row.Metadata = map[string]string{"author": t.Author}
	}
	return row
}

// send stores rows. A batch is stored as a whole or not at all, so one that is
// refused for the sake of single rows is halved until those are found: a user
// who was forgotten must not keep their neighbours in the file from being
// stored.
func (s *sender) send(ctx context.Context, rows []importRow) error {
	req := &memdv1.AddRequest{Rows: make([]*memdv1.Row, len(rows))}
	for i, r := range rows {
		req.Rows[i] = r.row
	}
	resp, err := s.add(ctx, req)
	if err == nil {
		s.record(resp)
		return nil
	}
	reason := reasonOf(err)
	switch reason {
	case memdv1.Reason_REASON_INVALID, memdv1.Reason_REASON_TOO_LARGE,
		memdv1.Reason_REASON_MEMORY_DELETED, memdv1.Reason_REASON_SOURCE_TIME_REQUIRED,
		memdv1.Reason_REASON_ERASED_BEFORE, memdv1.Reason_REASON_MONTH_EXPIRED:
		if len(rows) == 1 {
			s.refuse(rows, err)
			return nil
		}
	case memdv1.Reason_REASON_FENCED, memdv1.Reason_REASON_SESSION_FORGOTTEN:
		// These hold for a whole conversation.
		if rows[0].line == rows[len(rows)-1].line {
			s.refuse(rows, err)
			return nil
		}
	default:
		return err
	}
	half := len(rows) / 2
	if err := s.send(ctx, rows[:half]); err != nil {
		return err
	}
	return s.send(ctx, rows[half:])
}

// add repeats a request through passing trouble, which its event ids make safe.
// A server that never answered is not waited for: its address is wrong.
func (s *sender) add(ctx context.Context, req *memdv1.AddRequest) (*memdv1.AddResponse, error) {
	wait, until := firstRetryWait, time.Now().Add(patience)
	for {
		resp, err := s.memory.Add(ctx, req)
		s.mu.Lock()
		s.answered = s.answered || err == nil || reasonOf(err) != memdv1.Reason_REASON_UNSPECIFIED
		again := s.answered && transient(err) && time.Now().Before(until)
		s.mu.Unlock()
		if err == nil || !again {
			return resp, err
		}
		if !pause(ctx, wait/2+rand.N(wait)) {
			return nil, ctx.Err()
		}
		wait = min(2*wait, maxRetryWait)
	}
}

func (s *sender) count(f func(*importResult)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.total)
}

func (s *sender) record(resp *memdv1.AddResponse) {
	s.count(func(t *importResult) {
		for _, r := range resp.GetResults() {
			switch r.GetStatus() {
			case memdv1.AddStatus_ADD_STATUS_CREATED:
				t.Created++
			case memdv1.AddStatus_ADD_STATUS_UPDATED:
				t.Updated++
			case memdv1.AddStatus_ADD_STATUS_UNCHANGED:
				t.Unchanged++
			case memdv1.AddStatus_ADD_STATUS_KEPT:
				t.Kept++
			case memdv1.AddStatus_ADD_STATUS_DELETED:
				t.Deleted++
			}
		}
	})
	s.progress.add(len(resp.GetResults()))
}

func (s *sender) refuse(rows []importRow, err error) {
	text, _ := explain(err)
	s.count(func(t *importResult) {
		t.Refused += int64(len(rows))
		s.refused[refusal{rows[0].line, reasonOf(err), text}] += int64(len(rows))
	})
	s.progress.add(len(rows))
}

// refusals lists the lines that the server refused turns of, in order, and
// counts those beyond maxComplaints.
func (s *sender) refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]refusal, 0, len(s.refused))
	for k := range s.refused {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b refusal) int { return a.line - b.line })
	var out []string
	for i, k := range keys {
		if i == maxComplaints {
			out = append(out, fmt.Sprintf("and %s", plural(int64(len(keys)-i), "more line", "more lines")))
			break
		}
		out = append(out, fmt.Sprintf("line %d: %s refused: %s", k.line, plural(s.refused[k], "turn", "turns"), k.message))
	}
	return out
}

// result returns the totals.
func (s *sender) result(took time.Duration) *importResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.total
	r.Seconds = took.Seconds()
	if r.Seconds > 0 {
		r.TurnsPerSecond = float64(r.Turns) / r.Seconds
	}
	return &r
}
