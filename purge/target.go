package purge

import (
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
)

// Kind is how a target is reached.
type Kind uint8

// Kinds, append-only.
const (
	KindUnknown Kind = iota
	KindConnect
	KindWebhook
	KindLogFile
	KindRetention
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindConnect:
		return "connect"
	case KindWebhook:
		return "webhook"
	case KindLogFile:
		return "logfile"
	case KindRetention:
		return "retention"
	}
	return "unknown"
}

// remote reports whether the target is called over the network.
func (k Kind) remote() bool { return k == KindConnect || k == KindWebhook }

// Order is when in an erasure a target is called.
type Order uint8

// Orders, append-only, in the order in which an erasure comes by them.
const (
	OrderUnknown Order = iota
	BeforeSessions
	WithSessions
	AfterMemory
)

// String returns the order's name.
func (o Order) String() string {
	switch o {
	case BeforeSessions:
		return "before_sessions"
	case WithSessions:
		return "with_sessions"
	case AfterMemory:
		return "after_memory"
	}
	return "unknown"
}

// Limits of a target.
const (
	// MaxTargets is the number of targets of one tenant.
	MaxTargets = 64
	// MaxShortRetention is the longest retention that a target may have whose only
	// way to forget it is: the month in which a request is due.
	MaxShortRetention = 30 * 24 * time.Hour

	DefaultTimeout = 10 * time.Second
	minTimeout     = 100 * time.Millisecond
	maxTimeout     = 60 * time.Second
	minRetention   = time.Hour
	maxRetention   = 10 * 365 * 24 * time.Hour
	maxURL         = 2048
	maxPath        = 1024
	maxToken       = 512
	minToken       = 16
)

// LogFields names the fields of a log line whose value is an id in clear. Empty
// ones are not looked for.
type LogFields struct{ User, Session, App string }

// Target is a store outside memd, as it was registered.
type Target struct {
	Tenant memd.TenantNo
	ID     uuid.UUID
	Name   string
	Kind   Kind
	Order  Order
	// Required: an erasure is not done without it.
	Required bool
	// URL, Timeout and AllowPrivate are of targets that are called over the
	// network.
	URL          string
	Timeout      time.Duration
	AllowPrivate bool
	// Path and Fields are of files.
	Path   string
	Fields LogFields
	// Retention is how long the store keeps things by itself.
	Retention time.Duration
	CreatedAt time.Time
	// CreatedBy is the API key that made it.
	CreatedBy uuid.UUID

	secret []byte // sealed
}

// New is a target that is to be made. Zero fields take their defaults.
type New struct {
	Tenant       memd.TenantNo
	Name         string
	Kind         Kind
	Order        Order // AfterMemory
	BestEffort   bool
	URL          string
	Timeout      time.Duration // DefaultTimeout
	AllowPrivate bool
	Path         string
	Fields       LogFields
	Retention    time.Duration
	// Secret is given, or empty: then one is made.
	Secret    string
	CreatedBy uuid.UUID
}

// Inside reports whether the target is in the installation's own network or on
// its disks, which only the installation's operator may decide.
func (n New) Inside() bool { return n.AllowPrivate || n.Path != "" || n.Kind == KindLogFile }

var (
	namePattern  = regexp.MustCompile(`^[a-z][a-z0-9-]{1,62}$`)
	fieldPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,128}$`)
)

func invalid(field, problem string) error { return &memd.InvalidError{Field: field, Problem: problem} }

// validate fills in the defaults and names the field that is wrong.
// allowPrivate is the installation's setting.
func (n *New) validate(allowPrivate bool) error {
	if n.Order == OrderUnknown {
		n.Order = AfterMemory
	}
	if n.Timeout == 0 {
		n.Timeout = DefaultTimeout
	}
	switch {
	case !namePattern.MatchString(n.Name):
		return invalid("name", "must be 2 to 63 lower-case letters, digits and hyphens, the first a letter")
	case n.Kind < KindConnect || n.Kind > KindRetention:
		return invalid("kind", "must be connect, webhook, logfile or retention")
	case n.Order > AfterMemory:
		return invalid("order", "must be before_sessions, with_sessions or after_memory")
	case n.Timeout < minTimeout || n.Timeout > maxTimeout:
		return invalid("timeout", "must be 100 ms to 60 s")
	case n.Retention < 0 || n.Retention > maxRetention:
		return invalid("retention", "must be at most 10 years")
	}
	if n.Kind.remote() {
		return n.validateRemote(allowPrivate)
	}
	return n.validateLocal()
}

func (n *New) validateRemote(allowPrivate bool) error {
	switch {
	case n.Path != "" || n.Fields != (LogFields{}):
		return invalid("path", "is for targets that are files")
	case n.AllowPrivate && !allowPrivate:
		return invalid("allow_private", "is not allowed by this installation (MEMD_TARGET_ALLOW_PRIVATE)")
	}
	if err := checkURL(n.URL, n.AllowPrivate); err != nil {
		return err
	}
	if n.Secret == "" {
		return nil
	}
	if n.Kind == KindWebhook {
		if _, err := eraser.ParseKey(n.Secret); err != nil {
			return invalid("secret", `must be "whsec_" and base64 of 24 to 64 bytes`)
		}
		return nil
	}
	if len(n.Secret) < minToken || len(n.Secret) > maxToken || strings.ContainsFunc(n.Secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalid("secret", "must be a token of 16 to 512 printable ASCII characters without spaces")
	}
	return nil
}

// checkURL refuses what could not be called anyway, for an early answer: the
// address that counts is the one that is dialled.
func checkURL(text string, private bool) error {
	u, err := url.Parse(text)
	switch {
	case text == "" || len(text) > maxURL || err != nil || u.Hostname() == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return invalid("url", "must start with https:// and name a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return invalid("url", "must have no user, query or fragment; the secret goes into secret")
	}
	host := u.Hostname()
	address, err := netip.ParseAddr(host)
	literal := err == nil
	switch {
	case u.Scheme == "http" && (!private || host != "localhost" && !(literal && address.Unmap().IsLoopback())):
		return invalid("url", "must be https://; http:// is for loopback alone, with allow_private")
	case literal && !policy{private: private}.permits(address), host == "localhost" && !private:
		return invalid("url", "names an address that is not public; that needs allow_private, and is never possible for link-local and metadata addresses")
	}
	return nil
}

func (n *New) validateLocal() error {
	switch {
	case n.URL != "" || n.AllowPrivate:
		return invalid("url", "is for targets of kind connect and webhook")
	case n.Secret != "":
		return invalid("secret", "is for targets of kind connect and webhook")
	case n.Kind == KindLogFile && n.Path == "":
		return invalid("path", "must be given for a log file")
	case n.Kind == KindRetention && (n.Retention < minRetention || n.Retention > MaxShortRetention):
		return invalid("retention", "must be 1 hour to 30 days for a target that only forgets by its retention")
	case n.Kind == KindRetention && n.Fields != (LogFields{}):
		return invalid("log_fields", "are for log files")
	case n.Fields.User == "" && (n.Fields.Session != "" || n.Fields.App != ""):
		return invalid("log_fields", "must name the user's field too: the id of a session or an app alone may be another user's")
	}
	for _, f := range []string{n.Fields.User, n.Fields.Session, n.Fields.App} {
		if !fieldPattern.MatchString(f) {
			return invalid("log_fields", "may have letters, digits, dots, hyphens and underscores")
		}
	}
	if n.Path == "" {
		return nil
	}
	folder, name := filepath.Split(n.Path)
	_, bad := path.Match(name, "")
	switch {
	case len(n.Path) > maxPath || !filepath.IsAbs(n.Path) || filepath.Clean(n.Path) != n.Path || strings.ContainsAny(n.Path, "\x00\n"):
		return invalid("path", "must be absolute and have no . or .. in it")
	case bad != nil || name == "" || strings.ContainsAny(folder, "*?["):
		return invalid("path", "may have * and ? in its last part only")
	}
	return nil
}
