package kmsemu

import (
	"context"
	"slices"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (s *service) CreateCryptoKeyVersion(_ context.Context, req *kmspb.CreateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	k, err := s.server.findKey(req.GetParent())
	if err != nil {
		return nil, err
	}
	st := enabled
	switch req.GetCryptoKeyVersion().GetState() {
	case kmspb.CryptoKeyVersion_CRYPTO_KEY_VERSION_STATE_UNSPECIFIED, kmspb.CryptoKeyVersion_ENABLED:
	case kmspb.CryptoKeyVersion_DISABLED:
		st = disabled
	default:
		return nil, invalid("A version is created ENABLED or DISABLED.")
	}
	next := k.clone()
	next.addVersion(s.server.now(), st)
	if err := s.server.store.putKeys(map[string]*key{req.GetParent(): next}); err != nil {
		return nil, notWritten()
	}
	return versionProto(req.GetParent(), next, len(next.Versions)), nil
}

func (s *service) GetCryptoKeyVersion(_ context.Context, req *kmspb.GetCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	keyName, k, n, err := s.server.findVersion(req.GetName())
	if err != nil {
		return nil, err
	}
	return versionProto(keyName, k, n), nil
}

func (s *service) ListCryptoKeyVersions(_ context.Context, req *kmspb.ListCryptoKeyVersionsRequest) (*kmspb.ListCryptoKeyVersionsResponse, error) {
	k, err := s.server.findKey(req.GetParent())
	if err != nil {
		return nil, err
	}
	// Sorted as text, 10 before 2: the API promises no order, and a client that
	// needs one should find out here.
	numbers := make(map[string]int, len(k.Versions))
	for i := range k.Versions {
		numbers[versionName(req.GetParent(), i+1)] = i + 1
	}
	page, next, total, err := pageOf(childrenOf(numbers, ""), req)
	if err != nil {
		return nil, err
	}
	resp := &kmspb.ListCryptoKeyVersionsResponse{NextPageToken: next, TotalSize: int32(total)}
	for _, name := range page {
		resp.CryptoKeyVersions = append(resp.CryptoKeyVersions, versionProto(req.GetParent(), k, numbers[name]))
	}
	return resp, nil
}

// UpdateCryptoKeyVersion enables and disables, and does nothing else.
func (s *service) UpdateCryptoKeyVersion(_ context.Context, req *kmspb.UpdateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	if !slices.Equal(req.GetUpdateMask().GetPaths(), []string{"state"}) {
		return nil, invalid("The update_mask must be exactly: state.")
	}
	var to state
	switch req.GetCryptoKeyVersion().GetState() {
	case kmspb.CryptoKeyVersion_ENABLED:
		to = enabled
	case kmspb.CryptoKeyVersion_DISABLED:
		to = disabled
	default:
		return nil, invalid("A version can be set to ENABLED or DISABLED.")
	}
	return s.move(req.GetCryptoKeyVersion().GetName(), func(v *version, _ *key) bool {
		if v.State != enabled && v.State != disabled {
			return false
		}
		v.State = to
		return true
	})
}

func (s *service) DestroyCryptoKeyVersion(_ context.Context, req *kmspb.DestroyCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return s.move(req.GetName(), func(v *version, k *key) bool {
		if v.State != enabled && v.State != disabled {
			return false
		}
		v.State, v.DestroyAt = destroyScheduled, s.server.now().Add(k.DestroyDelay)
		return true
	})
}

func (s *service) RestoreCryptoKeyVersion(_ context.Context, req *kmspb.RestoreCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return s.move(req.GetName(), func(v *version, _ *key) bool {
		if v.State != destroyScheduled {
			return false
		}
		*v = version{State: disabled, Tag: v.Tag, Material: v.Material, CreatedAt: v.CreatedAt}
		return true
	})
}

// move changes the state of one version. change returns false when the state
// that the version is in does not allow it.
func (s *service) move(name string, change func(*version, *key) bool) (*kmspb.CryptoKeyVersion, error) {
	keyName, k, n, err := s.server.findVersion(name)
	if err != nil {
		return nil, err
	}
	next := k.clone()
	v := &next.Versions[n-1]
	if !change(v, next) {
		return nil, refusal(name, v.State, "cannot be changed so")
	}
	if err := s.server.store.putKeys(map[string]*key{keyName: next}); err != nil {
		return nil, notWritten()
	}
	return versionProto(keyName, next, n), nil
}

// refusal is FAILED_PRECONDITION as Cloud KMS gives it: the state in the text,
// and again in a PreconditionFailure.
func refusal(name string, st state, what string) error {
	s := status.Newf(codes.FailedPrecondition, "%s %s, current state is: %s.", name, what, st)
	detailed, err := s.WithDetails(&errdetails.PreconditionFailure{
		Violations: []*errdetails.PreconditionFailure_Violation{{Type: "KEY_" + string(st), Subject: name}},
	})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

func versionProto(keyName string, k *key, n int) *kmspb.CryptoKeyVersion {
	v := k.Versions[n-1]
	out := &kmspb.CryptoKeyVersion{
		Name:            versionName(keyName, n),
		ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE,
		Algorithm:       kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION,
		CreateTime:      timestamppb.New(v.CreatedAt),
		GenerateTime:    timestamppb.New(v.CreatedAt),
	}
	switch v.State {
	case enabled:
		out.State = kmspb.CryptoKeyVersion_ENABLED
	case disabled:
		out.State = kmspb.CryptoKeyVersion_DISABLED
	case destroyScheduled:
		out.State, out.DestroyTime = kmspb.CryptoKeyVersion_DESTROY_SCHEDULED, timestamppb.New(v.DestroyAt)
	case destroyed:
		out.State, out.DestroyEventTime = kmspb.CryptoKeyVersion_DESTROYED, timestamppb.New(v.DestroyedAt)
	}
	return out
}
