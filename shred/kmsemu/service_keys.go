package kmsemu

import (
	"context"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of Cloud KMS on a key's times.
const (
	minDestroyDelay     = 24 * time.Hour
	maxDestroyDelay     = 120 * 24 * time.Hour
	defaultDestroyDelay = 30 * 24 * time.Hour
	minRotationPeriod   = 24 * time.Hour
)

// service answers the calls. The server's lock is held in every method, and the
// clock is settled.
type service struct {
	kmspb.UnimplementedKeyManagementServiceServer
	server *Server
}

func (s *service) CreateKeyRing(_ context.Context, req *kmspb.CreateKeyRingRequest) (*kmspb.KeyRing, error) {
	name := req.GetParent() + "/keyRings/" + req.GetKeyRingId()
	if !ringPattern.MatchString(name) {
		return nil, invalid("The parent or the key_ring_id is malformed.")
	}
	if _, ok := s.server.store.rings[name]; ok {
		return nil, status.Errorf(codes.AlreadyExists, "KeyRing %s already exists.", name)
	}
	r := ring{CreatedAt: s.server.now()}
	if err := s.server.store.putRing(name, r); err != nil {
		return nil, notWritten()
	}
	return ringProto(name, r), nil
}

func (s *service) GetKeyRing(_ context.Context, req *kmspb.GetKeyRingRequest) (*kmspb.KeyRing, error) {
	if !ringPattern.MatchString(req.GetName()) {
		return nil, invalid("The name does not name a KeyRing.")
	}
	r, ok := s.server.store.rings[req.GetName()]
	if !ok {
		return nil, notFound(req.GetName())
	}
	return ringProto(req.GetName(), r), nil
}

func (s *service) ListKeyRings(_ context.Context, req *kmspb.ListKeyRingsRequest) (*kmspb.ListKeyRingsResponse, error) {
	if !locationPattern.MatchString(req.GetParent()) {
		return nil, invalid("The parent does not name a location.")
	}
	page, next, total, err := pageOf(childrenOf(s.server.store.rings, req.GetParent()+"/keyRings/"), req)
	if err != nil {
		return nil, err
	}
	resp := &kmspb.ListKeyRingsResponse{NextPageToken: next, TotalSize: int32(total)}
	for _, name := range page {
		resp.KeyRings = append(resp.KeyRings, ringProto(name, s.server.store.rings[name]))
	}
	return resp, nil
}

func (s *service) CreateCryptoKey(_ context.Context, req *kmspb.CreateCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	if !ringPattern.MatchString(req.GetParent()) || !idPattern.MatchString(req.GetCryptoKeyId()) {
		return nil, invalid("The parent or the crypto_key_id is malformed.")
	}
	if _, ok := s.server.store.rings[req.GetParent()]; !ok {
		return nil, notFound(req.GetParent())
	}
	name := req.GetParent() + "/cryptoKeys/" + req.GetCryptoKeyId()
	if _, ok := s.server.store.keys[name]; ok {
		return nil, status.Errorf(codes.AlreadyExists, "CryptoKey %s already exists.", name)
	}
	k, err := newKey(req.GetCryptoKey(), s.server.now())
	if err != nil {
		return nil, err
	}
	if !req.GetSkipInitialVersionCreation() {
		k.addVersion(k.CreatedAt, enabled)
		k.Primary = 1
	}
	if err := s.server.store.putKeys(map[string]*key{name: k}); err != nil {
		return nil, notWritten()
	}
	return keyProto(name, k), nil
}

// newKey checks what is asked for. What the emulator does not have is refused
// rather than ignored.
func newKey(want *kmspb.CryptoKey, now time.Time) (*key, error) {
	if want.GetPurpose() != kmspb.CryptoKey_ENCRYPT_DECRYPT {
		return nil, status.Error(codes.Unimplemented, "The emulator has ENCRYPT_DECRYPT keys only.")
	}
	switch want.GetVersionTemplate().GetAlgorithm() {
	case kmspb.CryptoKeyVersion_CRYPTO_KEY_VERSION_ALGORITHM_UNSPECIFIED, kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION:
	default:
		return nil, invalid("The algorithm does not suit the purpose.")
	}
	switch want.GetVersionTemplate().GetProtectionLevel() {
	case kmspb.ProtectionLevel_PROTECTION_LEVEL_UNSPECIFIED, kmspb.ProtectionLevel_SOFTWARE:
	default:
		return nil, status.Error(codes.Unimplemented, "The emulator has SOFTWARE keys only.")
	}
	if want.GetImportOnly() {
		return nil, status.Error(codes.Unimplemented, "The emulator imports no keys.")
	}
	k := &key{CreatedAt: now, DestroyDelay: defaultDestroyDelay}
	if d := want.GetDestroyScheduledDuration(); d != nil {
		k.DestroyDelay = d.AsDuration()
		if !d.IsValid() || k.DestroyDelay < minDestroyDelay || k.DestroyDelay > maxDestroyDelay {
			return nil, invalid("The destroy_scheduled_duration must be between 24 hours and 120 days.")
		}
	}
	if period, first := want.GetRotationPeriod(), want.GetNextRotationTime(); period != nil || first != nil {
		k.RotationPeriod, k.NextRotation = period.AsDuration(), first.AsTime()
		if k.RotationPeriod < minRotationPeriod || !first.IsValid() || !k.NextRotation.After(now) {
			return nil, invalid("Rotation needs a period of 24 hours or more and a next_rotation_time in the future.")
		}
	}
	return k, nil
}

func (s *service) GetCryptoKey(_ context.Context, req *kmspb.GetCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	k, err := s.server.findKey(req.GetName())
	if err != nil {
		return nil, err
	}
	return keyProto(req.GetName(), k), nil
}

func (s *service) ListCryptoKeys(_ context.Context, req *kmspb.ListCryptoKeysRequest) (*kmspb.ListCryptoKeysResponse, error) {
	if _, ok := s.server.store.rings[req.GetParent()]; !ok {
		return nil, notFound(req.GetParent())
	}
	page, next, total, err := pageOf(childrenOf(s.server.store.keys, req.GetParent()+"/cryptoKeys/"), req)
	if err != nil {
		return nil, err
	}
	resp := &kmspb.ListCryptoKeysResponse{NextPageToken: next, TotalSize: int32(total)}
	for _, name := range page {
		resp.CryptoKeys = append(resp.CryptoKeys, keyProto(name, s.server.store.keys[name]))
	}
	return resp, nil
}

func (s *service) UpdateCryptoKeyPrimaryVersion(_ context.Context, req *kmspb.UpdateCryptoKeyPrimaryVersionRequest) (*kmspb.CryptoKey, error) {
	keyName, k, n, err := s.server.findVersion(req.GetName() + "/cryptoKeyVersions/" + req.GetCryptoKeyVersionId())
	if err != nil {
		return nil, err
	}
	next := k.clone()
	next.Primary = n
	if err := s.server.store.putKeys(map[string]*key{keyName: next}); err != nil {
		return nil, notWritten()
	}
	return keyProto(keyName, next), nil
}

func notWritten() error { return status.Error(codes.Internal, "the key file could not be written") }

func ringProto(name string, r ring) *kmspb.KeyRing {
	return &kmspb.KeyRing{Name: name, CreateTime: timestamppb.New(r.CreatedAt)}
}

func keyProto(name string, k *key) *kmspb.CryptoKey {
	out := &kmspb.CryptoKey{
		Name: name, Purpose: kmspb.CryptoKey_ENCRYPT_DECRYPT, CreateTime: timestamppb.New(k.CreatedAt),
		VersionTemplate: &kmspb.CryptoKeyVersionTemplate{
			ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE, Algorithm: kmspb.CryptoKeyVersion_GOOGLE_SYMMETRIC_ENCRYPTION,
		},
		DestroyScheduledDuration: durationpb.New(k.DestroyDelay),
	}
	if k.Primary > 0 {
		out.Primary = versionProto(name, k, k.Primary)
	}
	if k.RotationPeriod > 0 {
		out.RotationSchedule = &kmspb.CryptoKey_RotationPeriod{RotationPeriod: durationpb.New(k.RotationPeriod)}
		out.NextRotationTime = timestamppb.New(k.NextRotation)
	}
	return out
}
