package server

import (
	"context"
	"errors"
	"fmt"
	"io"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// maxInlineBytes is the largest artifact, or range, of one message: in base64 it
// still fits into a request.
const maxInlineBytes = 8 << 20

type artifactHandler struct {
	artifacts *artifacts.Service
	streams   streams
}

var _ memdv1connect.ArtifactServiceHandler = (*artifactHandler)(nil)

// artifactTenantOf is the tenant of the call, as artifacts wants it.
func artifactTenantOf(ctx context.Context) artifacts.Tenant {
	p := principalOf(ctx)
	return artifacts.Tenant{No: p.Tenant, Epoch: p.Epoch}
}

func (h *artifactHandler) SaveArtifact(ctx context.Context, stream memdv1connect.ArtifactServiceSaveArtifactServerStream) (*memdv1.SaveArtifactResponse, error) {
	leave, err := h.streams.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetHeader() == nil {
		return nil, &memd.InvalidError{Field: "header", Problem: "is required in the first message"}
	}
	if err != nil {
		return nil, err
	}
	v, err := h.save(ctx, first.GetHeader(), &savedBytes{receive: stream.Receive})
	if err != nil {
		return nil, err
	}
	return &memdv1.SaveArtifactResponse{Version: v}, nil
}

func (h *artifactHandler) SaveArtifactInline(ctx context.Context, req *memdv1.SaveArtifactInlineRequest) (*memdv1.SaveArtifactInlineResponse, error) {
	leave, err := h.streams.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	v, err := h.save(ctx, req.GetHeader(), &savedBytes{rest: req.GetData(), receive: func() (*memdv1.SaveArtifactRequest, error) { return nil, io.EOF }})
	if err != nil {
		return nil, err
	}
	return &memdv1.SaveArtifactInlineResponse{Version: v}, nil
}

func (h *artifactHandler) save(ctx context.Context, header *memdv1.SaveArtifactHeader, r io.Reader) (*memdv1.ArtifactVersion, error) {
	at, err := timeFromProto("source_time", header.GetSourceTime())
	if err != nil {
		return nil, err
	}
	file := artifacts.File{MimeType: header.GetMimeType(), Metadata: header.GetMetadata(), SourceTime: at}
	v, err := h.artifacts.Save(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(header.GetOwner()), header.GetName(), file, r)
	if err != nil {
		return nil, err
	}
	return artifactVersionToProto(v), nil
}

// savedBytes reads the bytes out of a stream's messages.
type savedBytes struct {
	receive func() (*memdv1.SaveArtifactRequest, error)
	rest    []byte
}

// Read implements io.Reader.
func (r *savedBytes) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		message, err := r.receive()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.EOF // the library's own is another value
		case err != nil:
			return 0, err
		case message.GetHeader() != nil:
			return 0, &memd.InvalidError{Field: "header", Problem: "belongs into the first message and no other"}
		}
		r.rest = message.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (h *artifactHandler) LoadArtifact(ctx context.Context, req *memdv1.LoadArtifactRequest, stream memdv1connect.ArtifactServiceLoadArtifactServerStream) error {
	leave, err := h.streams.enter()
	if err != nil {
		return err
	}
	defer leave()
	c, err := h.load(ctx, req)
	if err != nil {
		return err
	}
	err = stream.Send(&memdv1.LoadArtifactResponse{Part: &memdv1.LoadArtifactResponse_Header{Header: loadHeaderToProto(c)}})
	for err == nil {
		var b []byte
		if b, err = c.Next(ctx); err == nil {
			err = stream.Send(&memdv1.LoadArtifactResponse{Part: &memdv1.LoadArtifactResponse_Data{Data: b}})
		} else if errors.Is(err, io.EOF) {
			return nil
		}
	}
	return err
}

func (h *artifactHandler) LoadArtifactInline(ctx context.Context, req *memdv1.LoadArtifactInlineRequest) (*memdv1.LoadArtifactInlineResponse, error) {
	leave, err := h.streams.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := h.load(ctx, req.GetLoad())
	if err != nil {
		return nil, err
	}
	if c.Length > maxInlineBytes {
		return nil, &memd.InvalidError{Field: "length", Problem: fmt.Sprintf("of the range is more than %d bytes; ask for less, or use LoadArtifact", maxInlineBytes)}
	}
	res := &memdv1.LoadArtifactInlineResponse{Header: loadHeaderToProto(c), Data: make([]byte, 0, c.Length)}
	for {
		b, err := c.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return res, nil
		case err != nil:
			return nil, err
		}
		res.Data = append(res.Data, b...)
	}
}

func (h *artifactHandler) load(ctx context.Context, req *memdv1.LoadArtifactRequest) (*artifacts.Content, error) {
	return h.artifacts.Load(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(req.GetOwner()), req.GetName(),
		versionOrLatest(req.Version), req.GetOffset(), req.GetLength())
}

func (h *artifactHandler) ListArtifacts(ctx context.Context, req *memdv1.ListArtifactsRequest) (*memdv1.ListArtifactsResponse, error) {
	page, err := h.artifacts.List(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(req.GetOwner()), pageSize(req.GetPageSize()), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListArtifactsResponse{NextPageToken: page.Next, Fenced: page.Fenced}
	for _, n := range page.Names {
		res.Artifacts = append(res.Artifacts, &memdv1.Artifact{Name: n.Name, LatestVersion: n.Latest, CreatedAt: timestampToProto(n.CreatedAt)})
	}
	return res, nil
}

// versionPlace is the last version that a page gave out.
type versionPlace struct {
	Version int64 `json:"v"`
}

func (h *artifactHandler) ListArtifactVersions(ctx context.Context, req *memdv1.ListArtifactVersionsRequest) (*memdv1.ListArtifactVersionsResponse, error) {
	after := versionPlace{artifacts.Latest}
	if err := decodeToken(req.GetPageToken(), &after); err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	versions, err := h.artifacts.ListVersions(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(req.GetOwner()), req.GetName(), size, after.Version)
	if err != nil {
		return nil, err
	}
	res := &memdv1.ListArtifactVersionsResponse{}
	for _, v := range versions {
		res.Versions = append(res.Versions, artifactVersionToProto(v))
	}
	// A full page may be the last: its token then leads to an empty one.
	if len(versions) == size {
		res.NextPageToken, err = encodeToken(versionPlace{versions[size-1].Number})
	}
	return res, err
}

func (h *artifactHandler) GetArtifactVersion(ctx context.Context, req *memdv1.GetArtifactVersionRequest) (*memdv1.GetArtifactVersionResponse, error) {
	v, err := h.artifacts.GetVersion(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(req.GetOwner()), req.GetName(), versionOrLatest(req.Version))
	if err != nil {
		return nil, err
	}
	return &memdv1.GetArtifactVersionResponse{Version: artifactVersionToProto(v)}, nil
}

func (h *artifactHandler) DeleteArtifact(ctx context.Context, req *memdv1.DeleteArtifactRequest) (*memdv1.DeleteArtifactResponse, error) {
	var version int64
	switch what := req.GetWhat().(type) {
	case *memdv1.DeleteArtifactRequest_Version:
		version = what.Version
	case *memdv1.DeleteArtifactRequest_AllVersions:
		version = artifacts.All
	default:
		return nil, &memd.InvalidError{Field: "what", Problem: "is required: a version, or all of them"}
	}
	n, err := h.artifacts.Delete(ctx, artifactTenantOf(ctx), artifactOwnerFromProto(req.GetOwner()), req.GetName(), version)
	if err != nil {
		return nil, err
	}
	return &memdv1.DeleteArtifactResponse{VersionsDeleted: n}, nil
}

func artifactOwnerFromProto(o *memdv1.ArtifactOwner) artifacts.Owner {
	return artifacts.Owner{App: o.GetApp(), UserID: o.GetUserId(), SessionID: o.GetSessionId()}
}

func versionOrLatest(v *int64) int64 {
	if v == nil {
		return artifacts.Latest
	}
	return *v
}

func artifactVersionToProto(v artifacts.Version) *memdv1.ArtifactVersion {
	return &memdv1.ArtifactVersion{
		Name: v.Name, Version: v.Number, Size: v.Size, MimeType: v.MimeType, Metadata: v.Metadata,
		CreatedAt: timestampToProto(v.CreatedAt), SourceTime: timestampToProto(v.SourceTime),
	}
}

func loadHeaderToProto(c *artifacts.Content) *memdv1.LoadArtifactHeader {
	return &memdv1.LoadArtifactHeader{Version: artifactVersionToProto(c.Version), Offset: c.Offset, Length: c.Length}
}
