package server

import (
	"encoding/base64"
	"encoding/json"

	"forgettable.dev/memd"
)

// Pages of administrative lists.
const defaultPage = 100

// pageSize applies the default.
func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(asked)
}

// encodeToken makes an opaque page token of a place in a list. It is not a
// secret, and what it names is checked like any argument.
func encodeToken(place any) (string, error) {
	b, err := json.Marshal(place)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// decodeToken is the inverse of encodeToken. The empty token leaves place as it
// is: the start of the list.
func decodeToken(token string, place any) error {
	if token == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(b, place) != nil {
		return &memd.InvalidError{Field: "page_token", Problem: "is not one that this list gave out"}
	}
	return nil
}
