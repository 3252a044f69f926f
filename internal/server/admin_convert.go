package server

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/tenants"
)

// The enums of the domain have the numbers of the API's; a test compares their
// names.

func tenantToProto(t tenants.Tenant) *memdv1.Tenant {
	return &memdv1.Tenant{
		Name:        t.Name,
		DisplayName: t.DisplayName,
		State:       memdv1.TenantState(t.State),
		Policy: &memdv1.Policy{
			Dimension:      int32(t.Policy.Dimension),
			Embedder:       t.Policy.Embedder,
			VectorFormat:   memdv1.VectorFormat(t.Policy.VectorFormat),
			DestroyDelay:   durationpb.New(t.Policy.DestroyDelay),
			Index:          memdv1.IndexMode(t.Policy.Index),
			IngestionDelay: durationpb.New(t.Policy.IngestionDelay),
			LiftFence:      memdv1.LiftFence(t.Policy.LiftFence),
			Compaction:     memdv1.CompactionMode(t.Policy.Compaction),

			SessionRetention: retentionToProto(t.Policy.Sessions),
			MemoryRetention:  retentionToProto(t.Policy.Memories),
			Quota: &memdv1.Quota{
				Rows: new(t.Policy.Quota.Rows), Bytes: new(t.Policy.Quota.Bytes), CallsPerSecond: new(int32(t.Policy.Quota.Calls)),
			},
		},
		KeyEpoch:  t.Epoch,
		CreatedAt: timestampToProto(t.CreatedAt),
		UpdatedAt: timestampToProto(t.UpdatedAt),
		Usage:     usageToProto(t.Usage),
	}
}

// policyChange takes what is set in a policy of the API.
func policyChange(p *memdv1.Policy) tenants.Change {
	var c tenants.Change
	if p.GetDimension() != 0 {
		c.Dimension = new(int(p.GetDimension()))
	}
	if p.GetEmbedder() != "" {
		c.Embedder = new(p.GetEmbedder())
	}
	if p.GetVectorFormat() != memdv1.VectorFormat_VECTOR_FORMAT_UNSPECIFIED {
		c.VectorFormat = new(tenants.VectorFormat(p.GetVectorFormat()))
	}
	if p.GetDestroyDelay() != nil {
		c.DestroyDelay = new(p.GetDestroyDelay().AsDuration())
	}
	if p.GetIndex() != memdv1.IndexMode_INDEX_MODE_UNSPECIFIED {
		c.Index = new(tenants.IndexMode(p.GetIndex()))
	}
	if p.GetIngestionDelay() != nil {
		c.IngestionDelay = new(p.GetIngestionDelay().AsDuration())
	}
	if p.GetLiftFence() != memdv1.LiftFence_LIFT_FENCE_UNSPECIFIED {
		c.LiftFence = new(tenants.LiftMode(p.GetLiftFence()))
	}
	if p.GetCompaction() != memdv1.CompactionMode_COMPACTION_MODE_UNSPECIFIED {
		c.Compaction = new(tenants.CompactionMode(p.GetCompaction()))
	}
	c.SessionMonths, c.SessionNotBefore = retentionFromProto(p.GetSessionRetention())
	c.MemoryMonths, c.MemoryNotBefore = retentionFromProto(p.GetMemoryRetention())
	if q := p.GetQuota(); q != nil {
		c.MaxRows, c.MaxBytes = q.Rows, q.Bytes
		if q.CallsPerSecond != nil {
			c.MaxCalls = new(int(q.GetCallsPerSecond()))
		}
	}
	return c
}

// usageToProto leaves out that of a tenant that was never measured.
func usageToProto(u tenants.Usage) *memdv1.Usage {
	if u.MeasuredAt.IsZero() {
		return nil
	}
	return &memdv1.Usage{Rows: u.Rows, Bytes: u.Bytes, MeasuredAt: timestampToProto(u.MeasuredAt), Full: u.Full}
}

func retentionToProto(r tenants.Retention) *memdv1.Retention {
	return &memdv1.Retention{Months: new(int32(r.Months)), NotBefore: timestampToProto(r.NotBefore)}
}

// retentionFromProto takes what is set.
func retentionFromProto(r *memdv1.Retention) (months *int, notBefore *time.Time) {
	if r != nil && r.Months != nil {
		months = new(int(r.GetMonths()))
	}
	if r.GetNotBefore() != nil {
		notBefore = new(r.GetNotBefore().AsTime())
	}
	return months, notBefore
}

func keyToProto(k auth.Key, tenant string) *memdv1.ApiKey {
	p := &memdv1.ApiKey{
		KeyId:      k.ID.String(),
		Tenant:     tenant,
		Name:       k.Name,
		CreatedAt:  timestampToProto(k.CreatedAt),
		LastUsedAt: timestampToProto(k.LastUsedAt),
		RevokedAt:  timestampToProto(k.RevokedAt),
	}
	if k.CreatedBy != uuid.Nil {
		p.CreatedBy = k.CreatedBy.String()
	}
	for _, one := range k.Roles.Split() {
		p.Roles = append(p.Roles, roleToProto[one])
	}
	return p
}

var roleToProto = map[auth.Roles]memdv1.Role{
	auth.Agent:    memdv1.Role_ROLE_AGENT,
	auth.Eraser:   memdv1.Role_ROLE_ERASER,
	auth.Auditor:  memdv1.Role_ROLE_AUDITOR,
	auth.Operator: memdv1.Role_ROLE_OPERATOR,
	auth.Approver: memdv1.Role_ROLE_APPROVER,
}

func rolesFromProto(roles []memdv1.Role) auth.Roles {
	var set auth.Roles
	for one, p := range roleToProto {
		for _, r := range roles {
			if r == p {
				set |= one
			}
		}
	}
	return set
}

// timestampToProto leaves out a time that is not set.
func timestampToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
