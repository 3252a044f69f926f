package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

const systemMemd = "memd"

// ourStore is memd, sealed at rest, over Connect.
type ourStore struct {
	d     *dataset
	t     *tenant
	scope memd.Scope
}

// lanes is how many clients fill a scope.
const lanes = 4

// forgetWithin is how long a call waits for an erasure to be done.
const forgetWithin = 5 * time.Minute

// compareOurs measures memd.
func (l *lab) compareOurs(ctx context.Context, d *dataset) (Cell, error) {
	c := Cell{Data: d.Name, Dimension: d.Dimension, Rows: len(d.rows), System: systemMemd}
	t, err := l.tenant(ctx, fmt.Sprintf("tiers-%s-%d-%d", d.Name, d.Dimension, len(d.rows)), d.Dimension)
	if err != nil {
		return c, err
	}
	s := &ourStore{d: d, t: t, scope: l.newUser()}
	before, err := l.diskOfRows(ctx)
	if err != nil {
		return c, err
	}
	if err := s.fill(ctx); err != nil {
		return c, err
	}
	after, err := l.diskOfRows(ctx)
	if err != nil {
		return c, err
	}
	c.Disk = float64(after-before) / float64(len(d.rows))

	had := heap()
	began := time.Now()
	first, err := s.search(ctx, d.queries[0])
	c.Cold = time.Since(began).Seconds()
	if err != nil {
		return c, err
	}
	if d.recall(0, first) < 0.9 {
		return c, fmt.Errorf("the first search found %.0f %% of the true hits", 100*d.recall(0, first))
	}
	c.Memory = float64(heap()-had) / float64(len(d.rows))
	for range warmSearch {
		if _, err := s.search(ctx, d.queries[0]); err != nil {
			return c, err
		}
	}
	if err := c.measureSearch(ctx, d, s); err != nil {
		return c, err
	}
	if err := c.measureAdds(ctx, d, s); err != nil {
		return c, err
	}
	return c, s.forget(ctx, &c)
}

func (s *ourStore) fill(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lanes)
	for from := 0; from < len(s.d.rows) && ctx.Err() == nil; from += batchRows {
		group.Go(func() error { return s.add(ctx, from, min(len(s.d.rows), from+batchRows)) })
	}
	return group.Wait()
}

// session is the conversation that a row is of: 1,000 rows each.
func session(row int) string { return fmt.Sprint("s", row/subjectRows) }

func (s *ourStore) add(ctx context.Context, from, to int) error {
	rows := make([]*memdv1.Row, 0, to-from)
	for i := from; i < to; i++ {
		rows = append(rows, &memdv1.Row{
			Scope: scope(s.scope), SessionId: session(i), Kind: memdv1.Kind_KIND_RAW, Vector: s.d.rows[i],
			Text: strconv.Itoa(i) + " " + s.d.text(i),
		})
	}
	_, err := s.t.memory.Add(ctx, &memdv1.AddRequest{Rows: rows})
	return err
}

func (s *ourStore) search(ctx context.Context, query []float32) ([]int, error) {
	r, err := s.t.memory.Search(ctx, &memdv1.SearchRequest{Scope: scope(s.scope), Vector: query, TopK: hits})
	if err != nil {
		return nil, err
	}
	rows := make([]int, len(r.GetHits()))
	for i, h := range r.GetHits() {
		if rows[i], err = rowOf(h.GetMemory().GetText()); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// rowOf reads the number with which a text begins.
func rowOf(text string) (int, error) {
	n, _, _ := strings.Cut(text, " ")
	return strconv.Atoi(n)
}

// forget forgets one conversation and then everybody, and has a search see that it
// was so each time.
func (s *ourStore) forget(ctx context.Context, c *Cell) error {
	wait := durationpb.New(forgetWithin)
	if len(s.d.rows) > subjectRows {
		began := time.Now()
		r, err := s.t.erasure.ForgetSession(ctx, &memdv1.ForgetSessionRequest{
			App: s.scope.App, UserId: s.scope.UserID, SessionId: session(0), RequestId: uuid.NewString(), Wait: wait})
		c.ForgetSome = time.Since(began).Seconds()
		if err := done(r.GetReport(), err); err != nil {
			return fmt.Errorf("forgetting a session: %w", err)
		}
		found, err := s.search(ctx, s.d.rows[0])
		if err != nil {
			return err
		}
		if len(found) != hits || slices.ContainsFunc(found, func(row int) bool { return session(row) == session(0) }) {
			return fmt.Errorf("rows of a session that was forgotten are found: %v", found)
		}
	}
	accepted, err := s.t.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: s.scope.App, UserId: s.scope.UserID, RequestId: uuid.NewString(), Wait: durationpb.New(0)})
	began := time.Now()
	if err != nil {
		return fmt.Errorf("forgetting a user: %w", err)
	}
	if found, err := s.search(ctx, s.d.rows[0]); err != nil || len(found) > 0 {
		return fmt.Errorf("%d rows of somebody who was forgotten are found: %w", len(found), err)
	}
	r, err := s.t.erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: s.scope.App, UserId: s.scope.UserID, RequestId: accepted.GetReport().GetRequestId(), Wait: wait})
	c.ForgetAll = time.Since(began).Seconds()
	return done(r.GetReport(), err)
}

func done(r *memdv1.Report, err error) error {
	if err == nil && r.GetState() < memdv1.ErasureState_ERASURE_STATE_DONE {
		err = fmt.Errorf("the erasure is %v", r.GetState())
	}
	return err
}

// diskOfRows is what all rows of memd take in its database, with their indexes.
func (l *lab) diskOfRows(ctx context.Context) (bytes int64, err error) {
	err = l.memd.QueryRow(ctx, `SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
		WHERE c.relnamespace = 'memd'::regnamespace AND c.relkind = 'r'`).Scan(&bytes)
	return bytes, err
}
