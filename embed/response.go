package embed

import (
	"encoding/json"
	"net/http"

	"forgettable.dev/memd"
)

type response struct {
	Data []struct {
		Index     *int      `json:"index"`
		Embedding []float32 `json:"embedding"`
	} `json:"data"`
}

// decodeVectors puts each vector where its index says, since endpoints may
// answer in any order. Out is filled completely or an error returned.
func decodeVectors(data []byte, dim int, out [][]float32) error {
	var r response
	if err := json.Unmarshal(data, &r); err != nil {
		return unavailable("its answer is not the JSON of an embeddings endpoint")
	}
	if len(r.Data) != len(out) {
		return unavailable("it answered %d vectors for %d texts", len(r.Data), len(out))
	}
	clear(out) // of an earlier try
	for i, d := range r.Data {
		at := i
		if d.Index != nil {
			at = *d.Index
		}
		switch {
		case at < 0 || at >= len(out) || out[at] != nil:
			return unavailable("its answer has an index that is out of range or repeated")
		case len(d.Embedding) != dim:
			return unavailable("it answered dimension %d where the policy says %d", len(d.Embedding), dim)
		case !normalise(d.Embedding):
			return unavailable("it answered a vector without a direction")
		}
		out[at] = d.Embedding
	}
	return nil
}

// statusError classifies an answer that is not 200: at fault are the texts, the
// moment, or the configuration.
func statusError(resp *http.Response) error {
	code := resp.StatusCode
	switch {
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return &memd.InvalidError{
			Field:   "text",
			Problem: "was refused by the embedder; it may be longer than the model allows",
		}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return unavailable("it refused the API key (HTTP %d); check MEMD_OPENAI_API_KEY", code)
	case code == http.StatusNotFound:
		return unavailable("no such model or path (HTTP 404); check MEMD_OPENAI_BASE_URL and MEMD_OPENAI_MODEL")
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500 && code != http.StatusNotImplemented:
		return &retryableError{err: unavailable("HTTP %d", code), after: resp.Header.Get("Retry-After")}
	}
	return unavailable("unexpected HTTP %d", code)
}
