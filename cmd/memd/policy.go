package main

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// policyFlags are the fields of a tenant's policy. One that is not given keeps
// its value, or has its default in a new tenant.
type policyFlags struct {
	Dimension      int32          `placeholder:"N" help:"Components of a vector, 1 to 4096. A change has all memories embedded anew, in the background."`
	Embedder       string         `enum:",lexical,openai,none" default:"" placeholder:"NAME" help:"Who makes vectors of texts: lexical (built in; matches spelling, not meaning), openai (the endpoint that the server is configured with) or none. A change has all memories embedded anew, in the background; to none there is no change."`
	VectorFormat   string         `enum:",float32,float16" default:"" placeholder:"FORMAT" help:"How vectors are stored: float32 or float16."`
	Index          string         `enum:",auto,sealed" default:"" placeholder:"MODE" help:"Whether sketches of vectors may reach the database for very large scopes: auto or sealed (never)."`
	DestroyDelay   *time.Duration `placeholder:"DURATION" help:"How long a destroyed key version can still be restored by an operator, 24h to 2880h. Fixed when the tenant is created."`
	IngestionDelay *time.Duration `placeholder:"DURATION" help:"How late words may still arrive after they were spoken, 0 to 720h."`
	SessionMonths  *int32         `placeholder:"N" help:"For how many calendar months conversations are kept, the current one included, with their state and artifacts; 0 for ever. A month that expires goes from every backup."`
	SessionSince   *time.Time     `name:"session-not-before" placeholder:"TIME" help:"The floor: nothing of conversations expires before that time (RFC 3339). One that has passed takes it away."`
	MemoryMonths   *int32         `placeholder:"N" help:"The same for memories, by their source time."`
	MemorySince    *time.Time     `name:"memory-not-before" placeholder:"TIME" help:"The same floor for memories."`
	Compaction     string         `enum:",vacuum,rewrite" default:"" placeholder:"MODE" help:"What the tenant's erasures ask for where the installation compacts: vacuum, or rewrite, which locks tables of all tenants in the window and needs a key of the installation."`
	MaxRows        *int64         `placeholder:"N" help:"Quota: rows of content in all stores that the tenant may have; 0 for any number. For a key of the installation, like the two that follow."`
	MaxBytes       *int64         `placeholder:"N" help:"Quota: bytes that are sealed in those rows; 0 for any number."`
	MaxCalls       *int32         `placeholder:"N" help:"Quota: calls a second of the tenant's agents at each server; 0 for any number. Erasures, holds and exports are never refused."`
	LiftFence      string         `enum:",after-erasure,after-sweep" default:"" placeholder:"WHEN" help:"When a user who was erased may return: after-erasure, or after-sweep (when it was verified a second time, the ingestion delay later)."`
}

// policy returns what was given, with everything else unset.
func (f *policyFlags) policy() *memdv1.Policy {
	p := &memdv1.Policy{Dimension: f.Dimension, Embedder: f.Embedder}
	switch f.VectorFormat {
	case "float32":
		p.VectorFormat = memdv1.VectorFormat_VECTOR_FORMAT_FLOAT32
	case "float16":
		p.VectorFormat = memdv1.VectorFormat_VECTOR_FORMAT_FLOAT16
	}
	switch f.Index {
	case "auto":
		p.Index = memdv1.IndexMode_INDEX_MODE_AUTO
	case "sealed":
		p.Index = memdv1.IndexMode_INDEX_MODE_SEALED
	}
	switch f.LiftFence {
	case "after-erasure":
		p.LiftFence = memdv1.LiftFence_LIFT_FENCE_AFTER_ERASURE
	case "after-sweep":
		p.LiftFence = memdv1.LiftFence_LIFT_FENCE_AFTER_SWEEP
	}
	switch f.Compaction {
	case "vacuum":
		p.Compaction = memdv1.CompactionMode_COMPACTION_MODE_VACUUM
	case "rewrite":
		p.Compaction = memdv1.CompactionMode_COMPACTION_MODE_REWRITE
	}
	if f.DestroyDelay != nil {
		p.DestroyDelay = durationpb.New(*f.DestroyDelay)
	}
	if f.IngestionDelay != nil {
		p.IngestionDelay = durationpb.New(*f.IngestionDelay)
	}
	p.SessionRetention = retention(f.SessionMonths, f.SessionSince)
	p.MemoryRetention = retention(f.MemoryMonths, f.MemorySince)
	if f.MaxRows != nil || f.MaxBytes != nil || f.MaxCalls != nil {
		p.Quota = &memdv1.Quota{Rows: f.MaxRows, Bytes: f.MaxBytes, CallsPerSecond: f.MaxCalls}
	}
	return p
}

// retention is nil when nothing was given.
func retention(months *int32, notBefore *time.Time) *memdv1.Retention {
	if months == nil && notBefore == nil {
		return nil
	}
	r := &memdv1.Retention{Months: months}
	if notBefore != nil {
		r.NotBefore = timestamppb.New(*notBefore)
	}
	return r
}

type tenantPolicyCmd struct {
	Name string `arg:"" help:"Name of the tenant."`
	policyFlags
	outputFlags
	serverFlags
}

// Run changes what the flags say and shows the tenant as it is then.
func (c *tenantPolicyCmd) Run(ctx context.Context, con *console) error {
	policy := c.policy()
	if proto.Size(policy) == 0 {
		get := tenantGetCmd{Name: c.Name, outputFlags: c.outputFlags, serverFlags: c.serverFlags}
		return get.Run(ctx, con)
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Admin.SetPolicy(ctx, &memdv1.SetPolicyRequest{Tenant: c.Name, Policy: policy})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return printTenant(con, resp.GetTenant())
}
