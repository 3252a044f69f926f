package kmsemu

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Identity is who calls.
type Identity string

// The identities of memd. Each has one token.
const (
	// App unwraps: Decrypt, and nothing else.
	App Identity = "app"
	// Worker makes keys and versions, wraps and unwraps. It cannot destroy.
	Worker Identity = "worker"
	// Shredder lists, looks and destroys. It can neither wrap nor unwrap.
	Shredder Identity = "shredder"
	// Admin is an operator, and may do everything: enable, disable, restore.
	Admin Identity = "admin"
)

var identities = []Identity{App, Worker, Shredder, Admin}

// permissions says which methods an identity may call. Admin is not in it.
var permissions = map[Identity]map[string]bool{
	App: {"Decrypt": true},
	Worker: {
		"CreateCryptoKey": true, "GetCryptoKey": true, "CreateCryptoKeyVersion": true,
		"GetCryptoKeyVersion": true, "ListCryptoKeyVersions": true, "Encrypt": true, "Decrypt": true,
	},
	Shredder: {
		"GetCryptoKey": true, "ListCryptoKeys": true, "GetCryptoKeyVersion": true,
		"ListCryptoKeyVersions": true, "DestroyCryptoKeyVersion": true,
	},
}

// callers finds an identity by the digest of its token: looking up a digest
// tells nothing about a token by its timing.
type callers map[[sha256.Size]byte]Identity

func (c callers) authorize(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return status.Error(codes.Unauthenticated, "exactly one bearer token is needed")
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok {
		return status.Error(codes.Unauthenticated, "exactly one bearer token is needed")
	}
	who, ok := c[sha256.Sum256([]byte(token))]
	if !ok {
		return status.Error(codes.Unauthenticated, "the bearer token is not known")
	}
	if who != Admin && !permissions[who][method] {
		return status.Errorf(codes.PermissionDenied, "identity %s may not call %s", who, method)
	}
	return nil
}

// loadTokens reads the tokens file, or makes it with new tokens.
func loadTokens(path string) (map[Identity]string, error) {
	raw, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		tokens := make(map[Identity]string, len(identities))
		for _, id := range identities {
			tokens[id] = "memd-emulator-" + string(id) + "-" + rand.Text()
		}
		if raw, err = json.MarshalIndent(tokens, "", "  "); err != nil {
			return nil, fmt.Errorf("encoding tokens: %w", err)
		}
		return tokens, replaceFile(path, append(raw, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %w", err)
	}
	var tokens map[Identity]string
	if err := json.Unmarshal(raw, &tokens); err != nil {
		// The decoder's text may quote the file.
		return nil, fmt.Errorf("reading tokens: %s is not a tokens file", path)
	}
	seen := make(map[string]bool)
	for _, id := range identities {
		if len(tokens[id]) < 16 || seen[tokens[id]] {
			return nil, fmt.Errorf("reading tokens: %s: identity %s needs a token of its own, 16 bytes or more", path, id)
		}
		seen[tokens[id]] = true
	}
	return tokens, nil
}

func newCallers(tokens map[Identity]string) callers {
	c := make(callers, len(identities))
	for _, id := range identities {
		c[sha256.Sum256([]byte(tokens[id]))] = id
	}
	return c
}

// readPrivate reads a file that nobody but its owner may read or write.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s is open to others (mode %v): make it 0600", path, info.Mode().Perm())
	}
	return os.ReadFile(path)
}
