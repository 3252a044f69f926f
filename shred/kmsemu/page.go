package kmsemu

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
)

// maxPage is the most that a page holds, and what it holds when nothing is said.
const maxPage = 1000

// listing is what the list requests have in common.
type listing interface {
	GetPageSize() int32
	GetPageToken() string
	GetFilter() string
	GetOrderBy() string
}

// childrenOf returns the names under prefix, sorted.
func childrenOf[V any](all map[string]V, prefix string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range maps.Keys(all) {
			if strings.HasPrefix(name, prefix) && !yield(name) {
				return
			}
		}
	})
}

// pageOf cuts one page out of names. A page token is the last name of the page
// before, so that names added meanwhile neither repeat nor hide others.
func pageOf(names []string, req listing) (page []string, next string, total int, err error) {
	if req.GetFilter() != "" || req.GetOrderBy() != "" {
		return nil, "", 0, invalid("The emulator neither filters nor orders.")
	}
	if req.GetPageSize() < 0 {
		return nil, "", 0, invalid("The page_size is negative.")
	}
	size := maxPage
	if n := int(req.GetPageSize()); n > 0 && n < maxPage {
		size = n
	}
	start := 0
	if token := req.GetPageToken(); token != "" {
		last, decodeErr := base64.RawURLEncoding.DecodeString(token)
		at := slices.Index(names, string(last))
		if decodeErr != nil || at < 0 {
			return nil, "", 0, invalid("The page_token is not one of this listing.")
		}
		start = at + 1
	}
	page = names[start:]
	if len(page) > size {
		page = page[:size]
		next = base64.RawURLEncoding.EncodeToString([]byte(page[size-1]))
	}
	return page, next, len(names), nil
}
