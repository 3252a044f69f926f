package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/receipts"
)

// writer is who writes for the first user while they are being forgotten: what
// they said before, again and again, by every way in.
type writer struct {
	stop chan struct{}
	done sync.WaitGroup

	mu               sync.Mutex
	accepted, denied map[string]int64
	failures         []error
}

// race starts the writers, and returns when each has written once. They write
// until end, and each once more after it.
func (p *canaryPlay) race(ctx context.Context) *writer {
	w := &writer{stop: make(chan struct{}), accepted: map[string]int64{}, denied: map[string]int64{}}
	var begun sync.WaitGroup
	for name, write := range p.writes() {
		begun.Add(1)
		w.done.Go(func() {
			w.note(name, write(ctx))
			begun.Done()
			for more := true; more && ctx.Err() == nil; {
				select {
				case <-w.stop:
					more = false
				default:
				}
				w.note(name, write(ctx))
			}
		})
	}
	begun.Wait()
	return w
}

// writes are the ways in: all with the time at which it was said, before the
// erasure.
func (p *canaryPlay) writes() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"add": func(ctx context.Context) error {
			row := p.row(p.scope(p.first), memdv1.Kind_KIND_RAW, "Late: "+p.word("raw"))
			row.SessionId = p.session(1)
			_, err := p.server.Memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
			return err
		},
		"add_own_scope": func(ctx context.Context) error {
			row := p.row(p.scope(p.first), memdv1.Kind_KIND_RAW, "Late: "+p.word("raw"))
			_, err := p.server.Memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
			return err
		},
		"add_session": func(ctx context.Context) error {
			resp, err := p.server.Memory.AddSession(ctx, &memdv1.AddSessionRequest{
				App: p.c.App, UserId: p.first, SessionId: p.session(1), Events: []*memdv1.Event{p.event("late", "Late: "+p.word("event"), nil)},
			})
			if err == nil && resp.GetAdded()+resp.GetUpdated()+resp.GetUnchanged() == 0 {
				return errAllRefused
			}
			return err
		},
		"append": func(ctx context.Context) error {
			_, err := p.server.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
				App: p.c.App, UserId: p.first, SessionId: p.session(1), Events: []*memdv1.Event{p.event("late", "Late: "+p.word("event"), nil)},
			})
			return err
		},
		"artifact": func(ctx context.Context) error {
			_, err := p.server.Artifacts.SaveArtifactInline(ctx, &memdv1.SaveArtifactInlineRequest{
				Header: p.header(p.first, p.session(1), "prescription.txt"), Data: []byte(p.word("file")),
			})
			return err
		},
	}
}

// errAllRefused: memory took none of a session's events.
var errAllRefused = errors.New("every event was refused")

// refusal reports whether a write was refused because of the erasure.
func refusedByErasure(err error) bool {
	switch reasonOf(err) {
	case memdv1.Reason_REASON_FENCED, memdv1.Reason_REASON_SESSION_FORGOTTEN, memdv1.Reason_REASON_ERASED_BEFORE,
		memdv1.Reason_REASON_SOURCE_TIME_REQUIRED:
		return true
	}
	// A session that is gone is not found, which is a refusal too.
	return errors.Is(err, errAllRefused) || connect.CodeOf(err) == connect.CodeNotFound
}

func (w *writer) note(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.accepted[name]++
	case refusedByErasure(err):
		w.denied[name]++
	case !transient(err):
		w.failures = append(w.failures, err)
	}
}

func (w *writer) end() *writer {
	close(w.stop)
	w.done.Wait()
	return w
}

// checkRace demands that the late writers were there, and that each was stopped.
func (p *canaryPlay) checkRace(w *writer) {
	began := time.Now()
	for _, name := range slices.Sorted(maps.Keys(p.writes())) {
		k := canaryCheck{Name: "race_" + name, Control: w.accepted[name], Result: canaryPass}
		switch {
		case w.denied[name] > 0:
			k.Control += w.denied[name]
		case w.accepted[name] > 0:
			k.Result, k.Reason, k.After = canaryFail, "not_refused", w.accepted[name]
		default:
			k.Result, k.Reason = canaryNotRun, "no_control"
		}
		p.note(k, began)
	}
}

// checkLate tries every way in once more, now that all is done.
func (p *canaryPlay) checkLate(ctx context.Context) {
	writes := p.writes()
	for _, name := range slices.Sorted(maps.Keys(writes)) {
		began := time.Now()
		err := writes[name](ctx)
		k := canaryCheck{Name: "late_" + name, Control: 1, Result: canaryPass}
		switch {
		case unserved(err):
			k.Control, k.Result, k.Reason = 0, canaryNotRun, "unimplemented"
		case err == nil:
			k.Result, k.Reason, k.After = canaryFail, "not_refused", 1
		case !refusedByErasure(err):
			k.Result, k.Reason = canaryNotRun, "unavailable"
		}
		if name == "add_session" && p.c.Dimension > 0 && k.Result == canaryNotRun {
			k.Reason = "no_embedder"
		}
		p.note(k, began)
	}
}

// checkReport reads what the service says of the erasure itself.
func (p *canaryPlay) checkReport(r *memdv1.Report) {
	began := time.Now()
	k := canaryCheck{Name: "report", Result: canaryPass}
	for _, c := range r.GetCounts() {
		k.Control += c.GetBefore()
		k.After += c.GetAfter()
	}
	switch {
	case k.After > 0:
		k.Result, k.Reason = canaryFail, "rows_left"
	case k.Control == 0:
		k.Result, k.Reason = canaryFail, "control_missed"
	case r.GetKey() == nil:
		k.Result, k.Reason = canaryFail, "key_usable"
	}
	p.note(k, began)
}

// checkOther demands that the second user lost nothing but the summary that was
// the first one's too.
func (p *canaryPlay) checkOther(before, after []string) {
	began := time.Now()
	k := canaryCheck{Name: "second_user", Control: int64(len(before)), Result: canaryPass}
	lost := func(s string) bool { return strings.HasPrefix(s, "memory "+p.ids["common"]+" ") }
	want := slices.DeleteFunc(slices.Clone(before), lost)
	switch {
	case len(want) == len(before):
		k.Result, k.Reason = canaryFail, "control_missed"
	case !slices.Equal(want, after):
		k.Result, k.Reason, k.After = canaryFail, "neighbour_harmed", int64(max(len(want)-len(after), 1))
	}
	p.note(k, began)
}

// checkEvidence asks for what the service can show: the verifier's checks, and
// the receipts.
func (p *canaryPlay) checkEvidence(ctx context.Context) {
	began := time.Now()
	v, err := p.server.Erasure.VerifyErasure(ctx, &memdv1.VerifyErasureRequest{RequestId: p.request})
	k := canaryCheck{Name: "verify_erasure", Control: int64(len(v.GetChecks())), Result: canaryPass}
	for _, c := range v.GetChecks() {
		if c.GetResult() == canaryFail {
			k.After++
		}
	}
	switch {
	case err != nil:
		k.Result, k.Reason = canaryNotRun, unavailableFor(err)
	case !v.GetFinished():
		k.Result, k.Reason = canaryNotRun, "timeout"
	case k.After > 0:
		k.Result, k.Reason = canaryFail, "found"
	case k.Control == 0:
		k.Result, k.Reason = canaryNotRun, "not_configured"
	}
	p.note(k, began)
	p.checkReceipt(ctx, "receipt", false)
	if p.swept(ctx) {
		p.checkReceipt(ctx, "final_receipt", true)
		return
	}
	p.checks = append(p.checks, canaryCheck{Name: "final_receipt", Result: canaryNotRun, Reason: "sweep_later"})
}

// unavailableFor says why the service did not answer a question of evidence.
func unavailableFor(err error) string {
	switch {
	case unserved(err):
		return "unimplemented"
	case connect.CodeOf(err) == connect.CodePermissionDenied:
		return "no_permission"
	}
	return "unavailable"
}

// swept waits for the second sweep, if it is near enough.
func (p *canaryPlay) swept(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, p.c.SweepWait)
	defer cancel()
	for {
		resp, err := p.server.Erasure.GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: p.request})
		if err != nil {
			return false
		}
		e := resp.GetReport().GetErasure()
		if e.GetState() == memdv1.ErasureState_ERASURE_STATE_FINAL {
			return true
		}
		deadline, _ := ctx.Deadline()
		if e.GetSweepAt() == nil || e.GetSweepAt().AsTime().After(deadline) || !pause(ctx, firstPollPause) {
			return false
		}
	}
}

// checkReceipt reads the newest receipt: that it is about this user, that its
// signature holds, and what it says.
func (p *canaryPlay) checkReceipt(ctx context.Context, name string, final bool) {
	began := time.Now()
	k := canaryCheck{Name: name, Result: canaryPass}
	defer func() { p.note(k, began) }()
	resp, err := p.server.Erasure.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: p.request})
	if err != nil {
		k.Result, k.Reason = canaryNotRun, unavailableFor(err)
		return
	}
	bundles := resp.GetBundles()
	if k.Control = int64(len(bundles)); k.Control == 0 {
		k.Result, k.Reason = canaryNotRun, "not_configured"
		return
	}
	bad := func(reason string) { k.Result, k.Reason, k.After = canaryFail, reason, 1 }
	b, err := receipts.ParseBundle(bundles[len(bundles)-1])
	if err != nil {
		bad("bad_answer")
		return
	}
	for _, secret := range []string{p.first, p.session(1), p.word("event"), p.word("raw")} {
		if bytes.Contains(bundles[len(bundles)-1], []byte(secret)) {
			bad("found")
			return
		}
	}
	r := b.Entry.Receipt
	salt, err := receipts.ParseSalt(p.salt)
	switch {
	case r.RequestID.String() != p.request || err == nil && !r.Proves(salt, p.c.App, p.first, ""):
		bad("bad_answer")
	case (r.Stage == receipts.Final) != final && final:
		bad("incomplete")
	case slices.ContainsFunc(r.Checks, func(c receipts.Check) bool { return c.Result == receipts.Fail }):
		bad("failed")
	}
	if k.Result == canaryFail {
		return
	}
	if p.c.PublicKey == "" {
		k.Result, k.Reason = canaryNotRun, "no_public_key"
		return
	}
	data, err := os.ReadFile(p.c.PublicKey)
	if err == nil {
		var keys *receipts.Keys
		if keys, err = receipts.ParseKeys(data); err == nil {
			_, err = b.Verify(keys)
		}
	}
	if err != nil {
		bad("bad_signature")
	}
}
