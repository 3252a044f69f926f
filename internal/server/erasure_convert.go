package server

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/receipts"
)

func reportToProto(r erasure.Report) *memdv1.Report {
	p := &memdv1.Report{
		RequestId:   r.ID.String(),
		State:       memdv1.ErasureState(r.State),
		AcceptedAt:  timestampToProto(r.AcceptedAt),
		FinishedAt:  timestampToProto(r.FinishedAt),
		FallenTotal: r.FallenTotal,
		KeyEpoch:    r.Key.Epoch,
		Erasure:     erasureToProto(r.Job),
		Checks:      checksToProto(r.Checks),
		Swept:       countsToProto(r.Found),
		Strangers:   strangersToProto(r.Strangers),
	}
	if r.Salt != (receipts.Salt{}) {
		p.Salt = r.Salt.Reveal()
	}
	for _, s := range r.Stores {
		one := &memdv1.StoreCount{Store: s.Store, Before: s.Before}
		if s.After >= 0 { // Below zero: not counted yet.
			one.After = new(s.After)
		}
		p.Counts = append(p.Counts, one)
	}
	for _, f := range r.Fallen {
		p.Fallen = append(p.Fallen, fallenToProto(f))
	}
	for _, s := range r.Steps {
		p.Steps = append(p.Steps, stepToProto(s))
	}
	for _, a := range r.Acks {
		p.Targets = append(p.Targets, &memdv1.TargetAnswer{
			Target: a.Name, Operation: a.Op.String(), Acknowledged: a.Acknowledged, Code: string(a.Code), At: timestampToProto(a.At),
		})
	}
	if r.Key.Epoch > 0 {
		p.Key = &memdv1.KeyDestruction{
			KmsVersion:   r.Key.Version,
			UnreadableAt: timestampToProto(r.Key.Unreadable),
			DestroyedAt:  timestampToProto(r.Key.DestroyedForGood),
			PurgedAt:     timestampToProto(r.Key.Purged),
		}
	}
	return p
}

func erasureToProto(j erasure.Job) *memdv1.Erasure {
	p := &memdv1.Erasure{
		RequestId: j.ID.String(), Kind: memdv1.ErasureKind(j.Kind), State: memdv1.ErasureState(j.State), App: j.App,
		AcceptedAt: timestampToProto(j.AcceptedAt), DueAt: timestampToProto(j.DueAt), FinishedAt: timestampToProto(j.FinishedAt),
		SweepAt: timestampToProto(j.SweepAt), FinalAt: timestampToProto(j.FinalAt),
		Held: j.Held, Tries: int32(min(j.Tries, 1<<30)), Failure: j.Failure,
	}
	if j.Kind == erasure.KindMonth {
		p.Month, p.DataClass = j.Month.String(), classToProto(j.Class)
	}
	return p
}

func stepToProto(s erasure.StepReport) *memdv1.ErasureStep {
	return &memdv1.ErasureStep{
		Name: s.Step.String(), Done: s.Done, StartedAt: timestampToProto(s.Started), FinishedAt: timestampToProto(s.Finished),
	}
}

func countsToProto(c erasure.Counts) []*memdv1.StoreCount {
	var out []*memdv1.StoreCount
	for _, name := range c.Stores() {
		out = append(out, &memdv1.StoreCount{Store: name, Before: c[name]})
	}
	return out
}

func checksToProto(checks []memd.Check) []*memdv1.ErasureCheck {
	var out []*memdv1.ErasureCheck
	for _, c := range checks {
		p := &memdv1.ErasureCheck{
			Name: c.Name, Result: c.Result.String(), Reason: c.Reason, ControlBefore: c.ControlBefore, CountAfter: c.CountAfter,
			Took: durationpb.New(c.Duration), Scanned: c.Scanned, Unscanned: c.Unscanned,
		}
		for _, r := range c.Rows {
			p.Rows = append(p.Rows, r.Table+" "+r.ID)
		}
		out = append(out, p)
	}
	return out
}

func fallenToProto(f erasure.FallenRow) *memdv1.FallenRow {
	p := &memdv1.FallenRow{MemoryId: f.ID.String(), Kind: memdv1.Kind(f.Kind)}
	if f.Scope.App != "" {
		p.Scope = scopeToProto(f.Scope)
	}
	for _, s := range f.Sources {
		p.SurvivingSources = append(p.SurvivingSources, sourceToProto(s))
	}
	return p
}

func sourceToProto(s memory.Source) *memdv1.Source {
	if s.MemoryID != uuid.Nil {
		return &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: s.MemoryID.String()}, Version: s.Version}
	}
	return &memdv1.Source{Source: &memdv1.Source_Session{
		Session: &memdv1.Session{UserId: s.UserID, SessionId: s.SessionID},
	}}
}
