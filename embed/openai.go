package embed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"forgettable.dev/memd"
)

// OpenAI returns an embedder that asks an OpenAI-compatible endpoint. Nothing
// is sent until the first Embed. It returns a memd.InvalidError that names the
// field of Config that is wrong.
func OpenAI(cfg Config) (Embedder, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	client := &http.Client{}
	if cfg.HTTPClient != nil {
		*client = *cfg.HTTPClient
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &openAI{cfg: cfg, url: strings.TrimRight(cfg.BaseURL, "/") + "/embeddings", client: client}, nil
}

type openAI struct {
	cfg    Config
	url    string
	client *http.Client
}

var _ Embedder = (*openAI)(nil)

func (o *openAI) Name() string   { return NameOpenAI + "/" + o.cfg.Model }
func (o *openAI) Dimension() int { return o.cfg.Dimension }

// Embed implements Embedder. It cuts texts into requests of BatchSize, of which
// Concurrency run at a time; the first that fails for good stops the others.
func (o *openAI) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	if err := checkTexts(texts); err != nil {
		return nil, err
	}
	out := make([][]float32, len(texts))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(o.cfg.Concurrency)
	for from := 0; from < len(texts); from += o.cfg.BatchSize {
		to := min(from+o.cfg.BatchSize, len(texts))
		group.Go(func() error { return o.embedBatch(groupCtx, texts[from:to], out[from:to]) })
	}
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("asking the embedder: %w", ctx.Err())
		}
		return nil, err
	}
	return out, nil
}

type request struct {
	Model          string   `json:"model"`
	Input          []string `json:"input"`
	EncodingFormat string   `json:"encoding_format"`
	Dimensions     int      `json:"dimensions,omitempty"`
}

// embedBatch fills out with the vectors of texts.
func (o *openAI) embedBatch(ctx context.Context, texts []string, out [][]float32) error {
	req := request{Model: o.cfg.Model, Input: texts, EncodingFormat: "float"}
	if o.cfg.SendDimension {
		req.Dimensions = o.cfg.Dimension
	}
	body, err := json.Marshal(req)
	if err != nil {
		return &memd.InvalidError{Field: "text", Problem: "cannot be sent to the embedder"}
	}
	return o.retry(ctx, func(ctx context.Context) error { return o.post(ctx, body, out) })
}

// post sends one request. The errors of net/http and of the endpoint are
// replaced by ours: theirs may repeat the URL, the key or the texts.
func (o *openAI) post(ctx context.Context, body []byte, out [][]float32) error {
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, bytes.NewReader(body))
	if err != nil {
		return unavailable("its address cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if o.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+string(o.cfg.APIKey))
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return &retryableError{err: unavailable("%s", reasonOf(err))}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// Reading a little lets the connection be used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		return statusError(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, o.cfg.MaxResponseBytes+1))
	if err != nil {
		return &retryableError{err: unavailable("its answer broke off: %s", reasonOf(err))}
	}
	if int64(len(data)) > o.cfg.MaxResponseBytes {
		return unavailable("its answer is larger than %d bytes", o.cfg.MaxResponseBytes)
	}
	return decodeVectors(data, o.cfg.Dimension, out)
}

// reasonOf says what kind of trouble the network had.
func reasonOf(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "it did not answer in time"
	case errors.As(err, &dns):
		return "its host name cannot be resolved"
	case errors.As(err, &op) && op.Op == "dial":
		return "no connection"
	}
	return "the connection failed"
}
