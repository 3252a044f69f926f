package main

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeCompaction is the part of the fake server that compacts. A vacuum is done at
// once; a rewrite fails, because somebody keeps a table locked.
type fakeCompaction struct {
	memdv1connect.UnimplementedCompactServiceHandler

	compactMu   sync.Mutex
	paused      bool
	schedule    *memdv1.CompactionSchedule
	compactions []*memdv1.Compaction
}

func (f *fakeCompaction) PlanCompaction(context.Context, *memdv1.PlanCompactionRequest) (*memdv1.PlanCompactionResponse, error) {
	return &memdv1.PlanCompactionResponse{Tables: []*memdv1.TablePlan{
		{Name: "memories", Content: true, Bytes: 1 << 30, DeadRows: 12, Permitted: true, Locked: durationpb.New(51 * time.Second), NeedsBytes: 2 << 30},
		{Name: "fences", Bytes: 8192, Locked: durationpb.New(time.Second)},
	}}, nil
}

func (f *fakeCompaction) RunCompaction(_ context.Context, req *memdv1.RunCompactionRequest) (*memdv1.RunCompactionResponse, error) {
	f.compactMu.Lock()
	defer f.compactMu.Unlock()
	c := &memdv1.Compaction{
		Number: int64(len(f.compactions) + 1), Mode: req.GetMode(), Cause: memdv1.CompactionCause_COMPACTION_CAUSE_OPERATOR,
		State: memdv1.CompactionState_COMPACTION_STATE_DONE,
		Tables: []*memdv1.TableCompaction{{
			Name: "memories", Content: true, State: memdv1.TableCompactionState_TABLE_COMPACTION_STATE_DONE, BytesBefore: 1000, BytesAfter: 400,
		}},
	}
	if req.GetMode() == memdv1.CompactionMode_COMPACTION_MODE_REWRITE {
		c.State, c.Failure = memdv1.CompactionState_COMPACTION_STATE_FAILED, "locked"
		c.Tables[0].State, c.Tables[0].Failure = memdv1.TableCompactionState_TABLE_COMPACTION_STATE_FAILED, "locked"
		c.Tables[0].Announced = durationpb.New(51 * time.Second)
	}
	f.compactions = append([]*memdv1.Compaction{c}, f.compactions...)
	return &memdv1.RunCompactionResponse{Number: c.GetNumber()}, nil
}

func (f *fakeCompaction) GetCompactions(_ context.Context, req *memdv1.GetCompactionsRequest) (*memdv1.GetCompactionsResponse, error) {
	f.compactMu.Lock()
	defer f.compactMu.Unlock()
	if f.schedule == nil {
		f.schedule = &memdv1.CompactionSchedule{
			Mode: memdv1.CompactionMode_COMPACTION_MODE_VACUUM, Every: durationpb.New(24 * time.Hour), Minutes: 1440, Days: []int32{0, 1, 2, 3, 4, 5, 6},
		}
	}
	resp := &memdv1.GetCompactionsResponse{Paused: f.paused, Schedule: f.schedule, WindowOpen: true, WalArchived: true}
	for _, c := range f.compactions {
		if req.GetNumber() == 0 || req.GetNumber() == c.GetNumber() {
			resp.Compactions = append(resp.Compactions, c)
		}
	}
	return resp, nil
}

func (f *fakeCompaction) PauseCompaction(context.Context, *memdv1.PauseCompactionRequest) (*memdv1.PauseCompactionResponse, error) {
	f.compactMu.Lock()
	defer f.compactMu.Unlock()
	f.paused = true
	return &memdv1.PauseCompactionResponse{}, nil
}

func (f *fakeCompaction) ResumeCompaction(context.Context, *memdv1.ResumeCompactionRequest) (*memdv1.ResumeCompactionResponse, error) {
	f.compactMu.Lock()
	defer f.compactMu.Unlock()
	f.paused = false
	return &memdv1.ResumeCompactionResponse{}, nil
}

func (f *fakeCompaction) SetCompactionSchedule(_ context.Context, req *memdv1.SetCompactionScheduleRequest) (*memdv1.SetCompactionScheduleResponse, error) {
	f.compactMu.Lock()
	defer f.compactMu.Unlock()
	f.schedule = req.GetSchedule()
	return &memdv1.SetCompactionScheduleResponse{}, nil
}
