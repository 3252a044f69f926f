package gcpkms

import (
	"context"
	"fmt"
	"hash/crc32"
	"regexp"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"forgettable.dev/memd"
)

// maxInput is Cloud KMS's limit on the plaintext, and on the associated data,
// of a software key.
const maxInput = 64 << 10

var (
	keyPattern     = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[a-zA-Z0-9_-]{1,63}$`)
	versionPattern = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[a-zA-Z0-9_-]{1,63}/cryptoKeyVersions/[0-9]+$`)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(b, castagnoli)))
}

// fits reports whether b arrived as it was sent. A checksum that is missing
// does not fit: a zero value would fit the empty string.
func fits(b []byte, sum *wrapperspb.Int64Value) bool {
	return sum != nil && sum.GetValue() == checksum(b).GetValue()
}

// Encrypt implements shred.KMS. Plaintext and aad are at most 64 KiB each.
func (c *Client) Encrypt(ctx context.Context, version string, plaintext, aad []byte) ([]byte, error) {
	if err := checkEncrypt(version, plaintext, aad); err != nil {
		return nil, err
	}
	req := &kmspb.EncryptRequest{
		Name: version, Plaintext: plaintext, PlaintextCrc32C: checksum(plaintext),
		AdditionalAuthenticatedData: aad, AdditionalAuthenticatedDataCrc32C: checksum(aad),
	}
	var ciphertext []byte
	err := c.do(ctx, "Encrypt", func(ctx context.Context) error {
		resp, err := c.api.Encrypt(ctx, req)
		if err != nil {
			return err
		}
		// The name first: a ciphertext under another version is not a matter of
		// trying again, and must not be used whatever its checksum says.
		if resp.GetName() != version {
			return fmt.Errorf("%w: encrypted under another version than was asked for", memd.ErrCorrupt)
		}
		verified := resp.GetVerifiedPlaintextCrc32C() &&
			(len(aad) == 0 || resp.GetVerifiedAdditionalAuthenticatedDataCrc32C())
		if !verified || !fits(resp.GetCiphertext(), resp.GetCiphertextCrc32C()) {
			return errDamaged
		}
		ciphertext = resp.GetCiphertext()
		return nil
	})
	return ciphertext, err
}

// Decrypt implements shred.KMS.
func (c *Client) Decrypt(ctx context.Context, key string, ciphertext, aad []byte) ([]byte, error) {
	if !keyPattern.MatchString(key) {
		return nil, &memd.InvalidError{Field: "KMS key", Problem: "must be the full name of a key"}
	}
	req := &kmspb.DecryptRequest{
		Name: key, Ciphertext: ciphertext, CiphertextCrc32C: checksum(ciphertext),
		AdditionalAuthenticatedData: aad, AdditionalAuthenticatedDataCrc32C: checksum(aad),
	}
	var plaintext []byte
	err := c.do(ctx, "Decrypt", func(ctx context.Context) error {
		resp, err := c.api.Decrypt(ctx, req)
		if err != nil {
			return err
		}
		if !fits(resp.GetPlaintext(), resp.GetPlaintextCrc32C()) {
			clear(resp.GetPlaintext())
			return errDamaged
		}
		plaintext = resp.GetPlaintext()
		return nil
	})
	return plaintext, err
}

func checkEncrypt(version string, plaintext, aad []byte) error {
	switch {
	case !versionPattern.MatchString(version):
		return &memd.InvalidError{Field: "KMS key version", Problem: "must be the full name of a version, not of a key"}
	case len(plaintext) > maxInput:
		return &memd.InvalidError{Field: "plaintext", Problem: "is larger than 64 KiB"}
	case len(aad) > maxInput:
		return &memd.InvalidError{Field: "associated data", Problem: "is larger than 64 KiB"}
	}
	return nil
}
