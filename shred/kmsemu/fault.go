package kmsemu

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"cloud.google.com/go/kms/apiv1/kmspb"
)

// Fault is something that goes wrong, for tests.
type Fault struct {
	// Method is the RPC it befalls ("Decrypt"), or empty for all of them.
	Method string
	// Skip lets this many calls pass first. Times is how many it befalls then;
	// 0 means all that follow, until the fault is removed.
	Skip, Times int

	// Delay is waited before the call, for at most the caller's deadline.
	Delay time.Duration
	// Code is answered instead of running the call, unless it is codes.OK.
	Code codes.Code
	// LoseAnswer runs the call and then answers Code (UNAVAILABLE if it is
	// codes.OK): the caller cannot know whether it happened.
	LoseAnswer bool
	// DamageRequest answers as Cloud KMS does when what arrived does not fit
	// its checksum.
	DamageRequest bool
	// CorruptChecksum changes the checksum of the answer.
	CorruptChecksum bool
	// DropChecksum leaves the checksum out of the answer.
	DropChecksum bool
	// Unverified answers as if the request's checksums had not arrived.
	Unverified bool
	// WrongVersionName names another version in the answer.
	WrongVersionName bool
	// Stale lets Encrypt and Decrypt use a version that is no longer enabled
	// while its material exists. Cloud KMS does so for a minute, and in
	// exceptional cases for hours, after a version was disabled.
	Stale bool
	// Pending shows versions as PENDING_GENERATION.
	Pending bool
}

type activeFault struct {
	Fault
	seen int
}

// Inject adds a fault and returns a function that removes it. When several
// befall a call, the one injected first does.
func (s *Server) Inject(f Fault) (remove func()) {
	s.faultsMu.Lock()
	defer s.faultsMu.Unlock()
	active := &activeFault{Fault: f}
	s.faults = append(s.faults, active)
	return func() {
		s.faultsMu.Lock()
		defer s.faultsMu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(a *activeFault) bool { return a == active })
	}
}

// Calls returns how many authorised calls of method arrived; of all methods
// when it is empty.
func (s *Server) Calls(method string) int {
	s.faultsMu.Lock()
	defer s.faultsMu.Unlock()
	if method != "" {
		return s.calls[method]
	}
	n := 0
	for _, c := range s.calls {
		n += c
	}
	return n
}

// befall counts a call and returns the fault that befalls it, or the zero one.
func (s *Server) befall(method string) Fault {
	s.faultsMu.Lock()
	defer s.faultsMu.Unlock()
	s.calls[method]++
	var hit *activeFault
	for _, f := range s.faults {
		if f.Method != "" && f.Method != method {
			continue
		}
		f.seen++
		if hit == nil && f.seen > f.Skip && (f.Times == 0 || f.seen <= f.Skip+f.Times) {
			hit = f
		}
	}
	if hit == nil {
		return Fault{}
	}
	return hit.Fault
}

// before runs the part of a fault that precedes the call.
func (f Fault) before(ctx context.Context) error {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
		}
	}
	if f.DamageRequest {
		return status.Error(codes.InvalidArgument, "The checksum in field plaintext_crc32c did not match the data in field plaintext.")
	}
	if f.Code != codes.OK && !f.LoseAnswer {
		return status.Error(f.Code, "injected fault")
	}
	return nil
}

// after changes an answer. Answers are made for one call each, so it may.
func (f Fault) after(resp any) error {
	if f.LoseAnswer {
		if f.Code == codes.OK {
			return status.Error(codes.Unavailable, "injected fault")
		}
		return status.Error(f.Code, "injected fault")
	}
	switch r := resp.(type) {
	case *kmspb.EncryptResponse:
		if f.CorruptChecksum {
			r.CiphertextCrc32C.Value ^= 1
		}
		if f.DropChecksum {
			r.CiphertextCrc32C = nil
		}
		if f.Unverified {
			r.VerifiedPlaintextCrc32C, r.VerifiedAdditionalAuthenticatedDataCrc32C = false, false
		}
		if f.WrongVersionName {
			r.Name += "0"
		}
	case *kmspb.DecryptResponse:
		if f.CorruptChecksum {
			r.PlaintextCrc32C.Value ^= 1
		}
		if f.DropChecksum {
			r.PlaintextCrc32C = nil
		}
	case *kmspb.CryptoKeyVersion:
		f.afterVersion(r)
	case *kmspb.ListCryptoKeyVersionsResponse:
		for _, v := range r.GetCryptoKeyVersions() {
			f.afterVersion(v)
		}
	}
	return nil
}

func (f Fault) afterVersion(v *kmspb.CryptoKeyVersion) {
	if f.WrongVersionName {
		v.Name += "0"
	}
	if f.Pending {
		v.State = kmspb.CryptoKeyVersion_PENDING_GENERATION
	}
}
