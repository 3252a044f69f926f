package server

import (
	"context"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tenants"
)

// defaultTopK is how many hits a Search returns that does not say.
const defaultTopK = 10

type memoryHandler struct {
	memory   *memory.Service
	sessions *sessions.Service
}

var _ memdv1connect.MemoryServiceHandler = (*memoryHandler)(nil)

// tenantOf is the tenant of the call, as authentication found it.
func tenantOf(ctx context.Context) memory.Tenant {
	p := admittedOf(ctx)
	t := MemoryTenant(p.Tenant, p.Epoch, p.Policy)
	t.Premise = p.premise
	return t
}

// MemoryTenant is a tenant as memory wants it.
func MemoryTenant(no memd.TenantNo, epoch int64, p tenants.Policy) memory.Tenant {
	return memory.Tenant{
		No:        no,
		Epoch:     epoch,
		Dimension: p.Dimension,
		Embedder:  p.Embedder,
		Format:    memory.VectorFormat(p.VectorFormat),
		Space:     int16(p.Space),
		Former:    memory.Space{Number: int16(p.Former.Number), Dimension: p.Former.Dimension, Embedder: p.Former.Embedder},
		Sealed:    p.Index == tenants.IndexSealed,
	}
}

func (h *memoryHandler) Add(ctx context.Context, req *memdv1.AddRequest) (*memdv1.AddResponse, error) {
	rows, err := rowsFromProto(req.GetRows())
	if err != nil {
		return nil, err
	}
	added, err := h.memory.Add(ctx, tenantOf(ctx), rows)
	if err != nil {
		return nil, err
	}
	res := &memdv1.AddResponse{Results: make([]*memdv1.AddResult, len(added))}
	for i, a := range added {
		res.Results[i] = &memdv1.AddResult{MemoryId: a.ID.String(), Version: a.Version, Status: memdv1.AddStatus(a.Status)}
	}
	return res, nil
}

func (h *memoryHandler) Search(ctx context.Context, req *memdv1.SearchRequest) (*memdv1.SearchResponse, error) {
	filter, err := filterFromProto(req.GetFilter())
	if err != nil {
		return nil, err
	}
	q := memory.Query{
		Scope:          scopeFromProto(req.GetScope()),
		Text:           req.GetText(),
		Vector:         req.GetVector(),
		TopK:           int(req.GetTopK()),
		MinScore:       req.MinScore,
		Filter:         filter,
		IncludeShared:  req.GetIncludeShared(),
		IncludeVectors: req.GetIncludeVectors(),
		LexicalWeight:  req.GetLexicalWeight(),
	}
	if q.TopK == 0 {
		q.TopK = defaultTopK
	}
	found, err := h.memory.Search(ctx, tenantOf(ctx), q)
	if err != nil {
		return nil, err
	}
	res := &memdv1.SearchResponse{Fenced: found.Fenced, Fused: found.Fused, Hits: make([]*memdv1.Hit, len(found.Hits))}
	hits := make([]memdv1.Hit, len(found.Hits))
	scopes := map[memd.Scope]*memdv1.Scope{} // one message for all hits of a scope
	for i := range found.Hits {
		m := &found.Hits[i].Memory
		if scopes[m.Scope] == nil {
			scopes[m.Scope] = scopeToProto(m.Scope)
		}
		hits[i].Memory, hits[i].Score = memoryInScope(m, scopes[m.Scope]), found.Hits[i].Score
		res.Hits[i] = &hits[i]
	}
	return res, nil
}

func (h *memoryHandler) Get(ctx context.Context, req *memdv1.GetRequest) (*memdv1.GetResponse, error) {
	id, err := idFromProto("memory_id", req.GetMemoryId())
	if err != nil {
		return nil, err
	}
	m, err := h.memory.Get(ctx, tenantOf(ctx), scopeFromProto(req.GetScope()), id, req.GetIncludeVector())
	if err != nil {
		return nil, err
	}
	return &memdv1.GetResponse{Memory: memoryToProto(m)}, nil
}

func (h *memoryHandler) List(ctx context.Context, req *memdv1.ListRequest) (*memdv1.ListResponse, error) {
	filter, err := filterFromProto(req.GetFilter())
	if err != nil {
		return nil, err
	}
	page, err := h.memory.List(ctx, tenantOf(ctx), scopeFromProto(req.GetScope()), filter,
		pageSize(req.GetPageSize()), req.GetPageToken(), req.GetIncludeVectors())
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListResponse{NextPageToken: page.Next, Fenced: page.Fenced}
	for _, m := range page.Memories {
		res.Memories = append(res.Memories, memoryToProto(m))
	}
	return res, nil
}

func (h *memoryHandler) Update(ctx context.Context, req *memdv1.UpdateRequest) (*memdv1.UpdateResponse, error) {
	id, err := idFromProto("memory_id", req.GetMemoryId())
	if err != nil {
		return nil, err
	}
	change, err := changeFromProto(req)
	if err != nil {
		return nil, err
	}
	m, err := h.memory.Update(ctx, tenantOf(ctx), scopeFromProto(req.GetScope()), id, change)
	if err != nil {
		return nil, err
	}
	return &memdv1.UpdateResponse{Memory: memoryToProto(m)}, nil
}

func (h *memoryHandler) Delete(ctx context.Context, req *memdv1.DeleteRequest) (*memdv1.DeleteResponse, error) {
	id, err := idFromProto("memory_id", req.GetMemoryId())
	if err != nil {
		return nil, err
	}
	d, err := h.memory.Delete(ctx, tenantOf(ctx), scopeFromProto(req.GetScope()), id, req.GetDeleteDerived())
	if err != nil {
		return nil, err
	}
	return &memdv1.DeleteResponse{DerivedDeleted: d.DerivedDeleted, DerivedRemaining: d.DerivedRemaining}, nil
}
