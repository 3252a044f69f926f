package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// fakeArtifacts keeps artifacts in memory, all in one place: what belongs to
// whom is the server's business, and is tested there.
type fakeArtifacts struct {
	memdv1connect.UnimplementedArtifactServiceHandler
	kept map[string][]kept
}

type kept struct {
	version *memdv1.ArtifactVersion
	data    []byte
}

func (f *fakeArtifacts) SaveArtifact(_ context.Context, stream memdv1connect.ArtifactServiceSaveArtifactServerStream) (*memdv1.SaveArtifactResponse, error) {
	first, err := stream.Receive()
	if err != nil {
		return nil, err
	}
	h, k := first.GetHeader(), kept{}
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		k.data = append(k.data, m.GetData()...)
	}
	k.version = &memdv1.ArtifactVersion{
		Name: h.GetName(), Version: int64(len(f.kept[h.GetName()])), Size: int64(len(k.data)), MimeType: h.GetMimeType(), Metadata: h.GetMetadata(),
	}
	f.kept[h.GetName()] = append(f.kept[h.GetName()], k)
	return &memdv1.SaveArtifactResponse{Version: k.version}, nil
}

func (f *fakeArtifacts) LoadArtifact(_ context.Context, req *memdv1.LoadArtifactRequest, stream memdv1connect.ArtifactServiceLoadArtifactServerStream) error {
	versions := f.kept[req.GetName()]
	n := len(versions) - 1
	if req.Version != nil {
		n = int(req.GetVersion())
	}
	if n < 0 || n >= len(versions) {
		return connect.NewError(connect.CodeNotFound, "not found")
	}
	k := versions[n]
	end := int64(len(k.data))
	if req.GetLength() > 0 {
		end = min(end, req.GetOffset()+req.GetLength())
	}
	part := k.data[req.GetOffset():end]
	err := stream.Send(&memdv1.LoadArtifactResponse{Part: &memdv1.LoadArtifactResponse_Header{
		Header: &memdv1.LoadArtifactHeader{Version: k.version, Offset: req.GetOffset(), Length: int64(len(part))},
	}})
	return errors.Join(err, stream.Send(&memdv1.LoadArtifactResponse{Part: &memdv1.LoadArtifactResponse_Data{Data: part}}))
}

func (f *fakeArtifacts) ListArtifacts(_ context.Context, req *memdv1.ListArtifactsRequest) (*memdv1.ListArtifactsResponse, error) {
	if req.GetOwner().GetUserId() == "fenced" {
		return &memdv1.ListArtifactsResponse{Fenced: true}, nil
	}
	res := &memdv1.ListArtifactsResponse{}
	for _, name := range slices.Sorted(maps.Keys(f.kept)) {
		res.Artifacts = append(res.Artifacts, &memdv1.Artifact{Name: name, LatestVersion: int64(len(f.kept[name]) - 1)})
	}
	return res, nil
}

func (f *fakeArtifacts) ListArtifactVersions(_ context.Context, req *memdv1.ListArtifactVersionsRequest) (*memdv1.ListArtifactVersionsResponse, error) {
	res := &memdv1.ListArtifactVersionsResponse{}
	for _, k := range f.kept[req.GetName()] {
		res.Versions = append(res.Versions, k.version)
	}
	return res, nil
}

func (f *fakeArtifacts) DeleteArtifact(_ context.Context, req *memdv1.DeleteArtifactRequest) (*memdv1.DeleteArtifactResponse, error) {
	n := int64(len(f.kept[req.GetName()]))
	if !req.GetAllVersions() {
		n = min(n, 1)
	}
	delete(f.kept, req.GetName())
	return &memdv1.DeleteArtifactResponse{VersionsDeleted: n}, nil
}
