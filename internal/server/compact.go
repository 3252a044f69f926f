package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// defaultCompactions is how many GetCompactions returns unless it is told.
const defaultCompactions = 5

// compactHandler keeps everybody out who has no key of the installation: the tables
// are all tenants'.
type compactHandler struct {
	pool   *pg.Pool
	clock  memd.Clock
	logger *slog.Logger
}

var _ memdv1connect.CompactServiceHandler = (*compactHandler)(nil)

// with runs f for callers of the installation.
func (h *compactHandler) with(ctx context.Context, f func(db pg.DB) error) error {
	if principalOf(ctx).Tenant != auth.Installation {
		return memd.ErrPermissionDenied
	}
	return h.pool.With(ctx, f)
}

func (h *compactHandler) PlanCompaction(ctx context.Context, _ *memdv1.PlanCompactionRequest) (*memdv1.PlanCompactionResponse, error) {
	res := &memdv1.PlanCompactionResponse{}
	err := h.with(ctx, func(db pg.DB) error {
		tables, err := compact.Tables(ctx, db)
		for _, t := range tables {
			res.Tables = append(res.Tables, &memdv1.TablePlan{
				Name: t.Name, Content: t.Content, Bytes: t.Bytes, DeadRows: t.Dead, Permitted: t.Permitted,
				Locked: durationpb.New(t.Estimate), NeedsBytes: t.Needs,
			})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (h *compactHandler) RunCompaction(ctx context.Context, req *memdv1.RunCompactionRequest) (*memdv1.RunCompactionResponse, error) {
	res := &memdv1.RunCompactionResponse{}
	caller, now := principalOf(ctx), h.clock.Now()
	err := h.with(ctx, func(db pg.DB) error {
		s, err := compact.ReadSettings(ctx, db)
		if err != nil {
			return err
		}
		res.WorkerThere = there(s, now)
		res.Number, err = compact.Ask(ctx, db, compact.Mode(req.GetMode()), compact.CauseOperator, caller.Key, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "compaction asked for", slog.Int64("compaction", res.GetNumber()),
		slog.String("mode", compact.Mode(req.GetMode()).String()), slog.String("by", caller.Key.String()))
	return res, nil
}

func (h *compactHandler) GetCompactions(ctx context.Context, req *memdv1.GetCompactionsRequest) (*memdv1.GetCompactionsResponse, error) {
	var s compact.Status
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = defaultCompactions
	}
	err := h.with(ctx, func(db pg.DB) (err error) {
		if s, err = compact.ReadStatus(ctx, db, limit); err != nil || req.GetNumber() == 0 {
			return err
		}
		one, err := compact.Read(ctx, db, req.GetNumber())
		s.Compactions = []compact.Compaction{one}
		return err
	})
	if err != nil {
		return nil, err
	}
	now := h.clock.Now()
	open, _ := s.Open(now)
	res := &memdv1.GetCompactionsResponse{
		Paused: s.Paused, Schedule: scheduleToProto(s.Schedule), WindowOpen: open, WorkerThere: there(s.Settings, now),
		WalCheckpointed: s.WAL.Checkpointed, WalSlots: s.WAL.Slots, WalArchived: s.WAL.Archived,
	}
	for _, c := range s.Compactions {
		res.Compactions = append(res.Compactions, compactionToProto(c))
	}
	return res, nil
}

func (h *compactHandler) PauseCompaction(ctx context.Context, _ *memdv1.PauseCompactionRequest) (*memdv1.PauseCompactionResponse, error) {
	if err := h.pause(ctx, true); err != nil {
		return nil, err
	}
	return &memdv1.PauseCompactionResponse{}, nil
}

func (h *compactHandler) ResumeCompaction(ctx context.Context, _ *memdv1.ResumeCompactionRequest) (*memdv1.ResumeCompactionResponse, error) {
	if err := h.pause(ctx, false); err != nil {
		return nil, err
	}
	return &memdv1.ResumeCompactionResponse{}, nil
}

func (h *compactHandler) pause(ctx context.Context, paused bool) error {
	by := principalOf(ctx).Key
	err := h.with(ctx, func(db pg.DB) error { return compact.Pause(ctx, db, paused, by, h.clock.Now()) })
	if err == nil {
		h.logger.LogAttrs(ctx, slog.LevelInfo, "compaction paused or resumed", slog.Bool("paused", paused), slog.String("by", by.String()))
	}
	return err
}

func (h *compactHandler) SetCompactionSchedule(ctx context.Context, req *memdv1.SetCompactionScheduleRequest) (*memdv1.SetCompactionScheduleResponse, error) {
	by, schedule := principalOf(ctx).Key, scheduleFromProto(req.GetSchedule())
	err := h.with(ctx, func(db pg.DB) error { return compact.SetSchedule(ctx, db, schedule, by, h.clock.Now()) })
	if err != nil {
		return nil, err
	}
	h.logger.LogAttrs(ctx, slog.LevelInfo, "compaction scheduled", slog.String("mode", schedule.Mode.String()),
		slog.Duration("every", schedule.Every), slog.String("by", by.String()))
	return &memdv1.SetCompactionScheduleResponse{}, nil
}

func there(s compact.Settings, now time.Time) bool { return now.Sub(s.SeenAt) < compact.Alive }

func scheduleToProto(s compact.Schedule) *memdv1.CompactionSchedule {
	p := &memdv1.CompactionSchedule{
		Mode: memdv1.CompactionMode(s.Mode), Every: durationpb.New(s.Every),
		StartMinute: int32(s.Start / time.Minute), Minutes: int32(s.Length / time.Minute),
	}
	for day := range int32(7) {
		if s.Days&(1<<day) != 0 {
			p.Days = append(p.Days, day)
		}
	}
	return p
}

func scheduleFromProto(p *memdv1.CompactionSchedule) compact.Schedule {
	s := compact.Schedule{
		Mode: compact.Mode(p.GetMode()), Every: durationOf(p.GetEvery()),
		Start: time.Duration(p.GetStartMinute()) * time.Minute, Length: time.Duration(p.GetMinutes()) * time.Minute,
	}
	for _, day := range p.GetDays() {
		s.Days |= 1 << day
	}
	return s
}

func compactionToProto(c compact.Compaction) *memdv1.Compaction {
	p := &memdv1.Compaction{
		Number: c.No, Mode: memdv1.CompactionMode(c.Mode), Cause: memdv1.CompactionCause(c.Cause), State: memdv1.CompactionState(c.State),
		RequestedAt: timestampToProto(c.RequestedAt), StartedAt: timestampToProto(c.StartedAt), FinishedAt: timestampToProto(c.FinishedAt),
		Tries: int32(c.Tries), Failure: string(c.Failure),
	}
	for _, t := range c.Tables {
		p.Tables = append(p.Tables, &memdv1.TableCompaction{
			Name: t.Name, Content: t.Content, State: memdv1.TableCompactionState(t.State), Tries: int32(t.Tries), Failure: string(t.Failure),
			Sqlstate: t.SQLState, BytesBefore: t.BytesBefore, BytesAfter: t.BytesAfter, Announced: durationpb.New(t.Announced),
			Blocked: durationpb.New(t.Blocked), Phase: t.Phase, Blocks: t.Blocks, BlocksTotal: t.BlocksTotal,
		})
	}
	return p
}
