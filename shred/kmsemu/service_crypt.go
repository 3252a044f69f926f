package kmsemu

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"hash/crc32"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A ciphertext is magic, the tag of its version, a nonce, and AES-256-GCM over
// the plaintext. What precedes the nonce is authenticated with the caller's
// associated data.
const (
	magic     = "memd-emu1"
	tagSize   = 16
	nonceSize = 12
	maxInput  = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(b, castagnoli)))
}

// verify checks what arrived against its checksum and reports whether there was one.
func verify(field string, b []byte, sum *wrapperspb.Int64Value) (bool, error) {
	if sum == nil {
		return false, nil
	}
	if sum.GetValue() != checksum(b).GetValue() {
		return false, status.Errorf(codes.InvalidArgument, "The checksum in field %s_crc32c did not match the data in field %s.", field, field)
	}
	return true, nil
}

func (s *service) Encrypt(ctx context.Context, req *kmspb.EncryptRequest) (*kmspb.EncryptResponse, error) {
	plaintextOK, err := verify("plaintext", req.GetPlaintext(), req.GetPlaintextCrc32C())
	if err != nil {
		return nil, err
	}
	aadOK, err := verify("additional_authenticated_data", req.GetAdditionalAuthenticatedData(), req.GetAdditionalAuthenticatedDataCrc32C())
	if err != nil {
		return nil, err
	}
	if len(req.GetPlaintext()) > maxInput || len(req.GetAdditionalAuthenticatedData()) > maxInput {
		return nil, invalid("The plaintext and the additional_authenticated_data must be no larger than 64 KiB.")
	}
	name, err := s.resolve(req.GetName())
	if err != nil {
		return nil, err
	}
	_, k, n, err := s.server.findVersion(name)
	if err != nil {
		return nil, err
	}
	v := k.Versions[n-1]
	if err := usable(ctx, name, v); err != nil {
		return nil, err
	}
	aead, err := newAEAD(v.Material)
	if err != nil {
		return nil, err
	}
	header := append([]byte(magic), v.Tag...)
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	ciphertext := aead.Seal(append(bytes.Clone(header), nonce...), nonce, req.GetPlaintext(), append(header, req.GetAdditionalAuthenticatedData()...))
	return &kmspb.EncryptResponse{
		Name: name, Ciphertext: ciphertext, CiphertextCrc32C: checksum(ciphertext),
		VerifiedPlaintextCrc32C: plaintextOK, VerifiedAdditionalAuthenticatedDataCrc32C: aadOK,
		ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE,
	}, nil
}

// resolve turns a key's name into that of its primary version.
func (s *service) resolve(name string) (string, error) {
	if !keyPattern.MatchString(name) {
		return name, nil
	}
	k, err := s.server.findKey(name)
	if err != nil {
		return "", err
	}
	if k.Primary == 0 {
		return "", status.Errorf(codes.FailedPrecondition, "%s has no primary version.", name)
	}
	return versionName(name, k.Primary), nil
}

func (s *service) Decrypt(ctx context.Context, req *kmspb.DecryptRequest) (*kmspb.DecryptResponse, error) {
	if _, err := verify("ciphertext", req.GetCiphertext(), req.GetCiphertextCrc32C()); err != nil {
		return nil, err
	}
	if _, err := verify("additional_authenticated_data", req.GetAdditionalAuthenticatedData(), req.GetAdditionalAuthenticatedDataCrc32C()); err != nil {
		return nil, err
	}
	k, err := s.server.findKey(req.GetName())
	if err != nil {
		return nil, err
	}
	header, rest, ok := cut(req.GetCiphertext())
	if !ok {
		return nil, invalid("Decryption failed: the ciphertext is invalid.")
	}
	n := k.versionTagged(header[len(magic):])
	if n == 0 {
		return nil, invalid("Decryption failed: verify that 'name' refers to the correct CryptoKey.")
	}
	v := k.Versions[n-1]
	if err := usable(ctx, versionName(req.GetName(), n), v); err != nil {
		return nil, err
	}
	aead, err := newAEAD(v.Material)
	if err != nil {
		return nil, err
	}
	plaintext, err := aead.Open(nil, rest[:nonceSize], rest[nonceSize:], append(bytes.Clone(header), req.GetAdditionalAuthenticatedData()...))
	if err != nil {
		return nil, invalid("Decryption failed: the ciphertext is invalid.")
	}
	return &kmspb.DecryptResponse{
		Plaintext: plaintext, PlaintextCrc32C: checksum(plaintext),
		UsedPrimary: n == k.Primary, ProtectionLevel: kmspb.ProtectionLevel_SOFTWARE,
	}, nil
}

func cut(ciphertext []byte) (header, rest []byte, ok bool) {
	const size = len(magic) + tagSize
	if len(ciphertext) < size+nonceSize || string(ciphertext[:len(magic)]) != magic {
		return nil, nil, false
	}
	return ciphertext[:size], ciphertext[size:], true
}

func (k *key) versionTagged(tag []byte) int {
	for i, v := range k.Versions {
		if bytes.Equal(v.Tag, tag) {
			return i + 1
		}
	}
	return 0
}

// usable refuses a version that is not enabled. A stale call gets through as
// long as there is material.
func usable(ctx context.Context, name string, v version) error {
	stale, _ := ctx.Value(staleKey{}).(bool)
	if v.State == enabled || stale && len(v.Material) > 0 {
		return nil
	}
	return refusal(name, v.State, "is not enabled")
}

func newAEAD(material []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(material)
	if err != nil {
		return nil, status.Error(codes.Internal, "the key file holds a damaged key")
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, status.Error(codes.Internal, "the key file holds a damaged key")
	}
	return aead, nil
}
