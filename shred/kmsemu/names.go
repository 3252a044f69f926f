package kmsemu

import (
	"regexp"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	idPattern       = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,63}$`)
	locationPattern = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+$`)
	ringPattern     = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[a-zA-Z0-9_-]{1,63}$`)
	keyPattern      = regexp.MustCompile(`^(projects/[^/]+/locations/[^/]+/keyRings/[a-zA-Z0-9_-]{1,63})/cryptoKeys/[a-zA-Z0-9_-]{1,63}$`)
	versionPattern  = regexp.MustCompile(`^(projects/[^/]+/locations/[^/]+/keyRings/[a-zA-Z0-9_-]{1,63}/cryptoKeys/[a-zA-Z0-9_-]{1,63})/cryptoKeyVersions/([1-9][0-9]{0,8})$`)
)

func invalid(what string) error { return status.Error(codes.InvalidArgument, what) }

func notFound(name string) error { return status.Errorf(codes.NotFound, "%s not found.", name) }

func versionName(key string, n int) string { return key + "/cryptoKeyVersions/" + strconv.Itoa(n) }

// findKey returns the key of that name. The caller must not change it.
func (s *Server) findKey(name string) (*key, error) {
	if !keyPattern.MatchString(name) {
		return nil, invalid("The name does not name a CryptoKey.")
	}
	k, ok := s.store.keys[name]
	if !ok {
		return nil, notFound(name)
	}
	return k, nil
}

// findVersion returns the key of a version's name and the version's number.
func (s *Server) findVersion(name string) (keyName string, k *key, n int, err error) {
	parts := versionPattern.FindStringSubmatch(name)
	if parts == nil {
		return "", nil, 0, invalid("The name does not name a CryptoKeyVersion.")
	}
	keyName = parts[1]
	if k, err = s.findKey(keyName); err != nil {
		return "", nil, 0, err
	}
	n, err = strconv.Atoi(parts[2])
	if err != nil || n > len(k.Versions) {
		return "", nil, 0, notFound(name)
	}
	return keyName, k, n, nil
}
