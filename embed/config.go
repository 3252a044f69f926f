package embed

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"forgettable.dev/memd"
)

// Config says how to reach an OpenAI-compatible embeddings endpoint. Zero
// fields take the defaults below, except BaseURL, Model and Dimension, which
// are required.
type Config struct {
	// BaseURL is the API's root, such as https://api.openai.com/v1 or
	// http://localhost:11434/v1; "/embeddings" is appended. Texts travel as the
	// URL says, so use https beyond this machine.
	BaseURL string
	// Model is sent with every request.
	Model string
	// Dimension of the vectors. An answer of another dimension is refused.
	Dimension int
	// SendDimension asks the model for Dimension components. Only models that
	// can shorten their vectors accept it (text-embedding-3 and its likes);
	// other servers refuse the field.
	SendDimension bool
	// APIKey is sent as a bearer token. Empty sends none.
	APIKey Secret
	// BatchSize is how many texts one request carries.
	BatchSize int
	// Concurrency is how many requests of one Embed run at a time.
	Concurrency int
	// Timeout bounds one request, not its retries; the caller's context bounds
	// those.
	Timeout time.Duration
	// Retries is how often a request is repeated after the first try when the
	// endpoint is busy (429), broken (5xx) or silent. Negative means never.
	Retries int
	// RetryWait is the first wait, doubled for each further one, with jitter.
	RetryWait time.Duration
	// MaxRetryWait bounds one wait. A Retry-After beyond it is an error at once:
	// a caller is waiting.
	MaxRetryWait time.Duration
	// MaxResponseBytes bounds one answer.
	MaxResponseBytes int64
	// HTTPClient sends the requests. Its redirect policy is replaced: redirects
	// are refused, because texts and key are meant for BaseURL alone.
	HTTPClient *http.Client
}

// Defaults of Config.
const (
	DefaultBatchSize    = 128
	DefaultConcurrency  = 4
	DefaultTimeout      = 10 * time.Second
	DefaultRetries      = 3
	DefaultRetryWait    = 200 * time.Millisecond
	DefaultMaxRetryWait = 5 * time.Second
)

// bytesPerComponent is a generous bound on one number of an answer in JSON,
// from which the default of MaxResponseBytes is made.
const bytesPerComponent = 32

// validate names the field that is wrong, and fills in the defaults.
func (c *Config) validate() error {
	u, err := url.Parse(c.BaseURL)
	switch {
	case c.BaseURL == "":
		return &memd.InvalidError{Field: "base URL", Problem: "of the embedder is missing (MEMD_OPENAI_BASE_URL)"}
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return &memd.InvalidError{Field: "base URL", Problem: "of the embedder must start with http:// or https:// and name a host"}
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return &memd.InvalidError{Field: "base URL", Problem: "of the embedder must have no user, query or fragment"}
	case strings.TrimSpace(c.Model) == "":
		return &memd.InvalidError{Field: "model", Problem: "of the embedder is missing (MEMD_OPENAI_MODEL)"}
	case c.BatchSize < 0 || c.BatchSize > 2048:
		return &memd.InvalidError{Field: "batch size", Problem: "of the embedder must be between 1 and 2048"}
	case c.Concurrency < 0, c.Timeout < 0, c.RetryWait < 0, c.MaxRetryWait < 0, c.MaxResponseBytes < 0:
		return &memd.InvalidError{Field: "embedder", Problem: "must have no negative limit"}
	}
	if err := checkDimension(c.Dimension, 1); err != nil {
		return err
	}
	setDefault(&c.BatchSize, DefaultBatchSize)
	setDefault(&c.Concurrency, DefaultConcurrency)
	setDefault(&c.Timeout, DefaultTimeout)
	setDefault(&c.Retries, DefaultRetries)
	setDefault(&c.RetryWait, DefaultRetryWait)
	setDefault(&c.MaxRetryWait, DefaultMaxRetryWait)
	setDefault(&c.MaxResponseBytes, int64(c.BatchSize)*(int64(c.Dimension)*bytesPerComponent+1<<10)+1<<20)
	c.Retries = max(c.Retries, 0)
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// unavailable is a memd.ErrEmbedderUnavailable that says why, in words of ours.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", memd.ErrEmbedderUnavailable, fmt.Sprintf(format, args...))
}
