package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"time"
)

// canaryCmd proves forgetting from outside.
type canaryCmd struct {
	Run canaryRunCmd `cmd:"" help:"Make a user, remember them in every way, forget them, and prove that nothing is left. For CI and for cron."`
}

// canaryRunCmd plays a whole erasure with a synthetic user, over the API alone.
type canaryRunCmd struct {
	Target    string        `placeholder:"URL" help:"Address of the service, if it is not --url."`
	Key       string        `placeholder:"memd_…" help:"API key with the roles agent and eraser, if it is not --api-key. An auditor's role adds receipts and verification."`
	App       string        `default:"memd-canary" help:"App under which the users are made. It should be nobody else's."`
	Dimension int           `placeholder:"N" help:"Send vectors of so many components: for a tenant whose embedder is \"none\"."`
	Limit     time.Duration `default:"5m" help:"How long all of it may take."`
	SweepWait time.Duration `default:"15s" help:"Wait for the second sweep when it is due within this time. Otherwise the final receipt is not checked."`
	PublicKey string        `type:"existingfile" placeholder:"FILE" help:"Public keys with which to verify the receipts, as \"memd receipt public-key\" prints them."`
	JUnit     string        `name:"junit" type:"path" placeholder:"FILE" help:"Write the checks to a file, as JUnit does, for CI."`
	outputFlags
	serverFlags
}

// Result of a check, in the words of the API.
const (
	canaryPass   = "pass"
	canaryFail   = "fail"
	canaryNotRun = "not_run"
)

// canaryCheck is one thing that was proved, or not.
type canaryCheck struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	// Control is how often the look hit before the erasure, After how often now.
	Control int64         `json:"control_before"`
	After   int64         `json:"count_after"`
	Took    time.Duration `json:"took_ns"`
}

// canaryReport is the whole run.
type canaryReport struct {
	Passed    bool          `json:"passed"`
	RequestID string        `json:"request_id"`
	Took      time.Duration `json:"took_ns"`
	Checks    []canaryCheck `json:"checks"`
}

// errCanary: said already, by the table.
var errCanary = errors.New("the canary found something, or could not finish")

// Run plays and reports. The exit status is 0 when nothing failed, 1 when
// anything did or the run could not be finished, 2 for a wrong command line.
func (c *canaryRunCmd) Run(ctx context.Context, con *console) error {
	if c.Target != "" {
		c.URL = c.Target
	}
	if c.Key != "" {
		c.APIKey = c.Key
	}
	if c.Dimension < 0 || c.Limit <= 0 || c.SweepWait < 0 {
		return usagef("--dimension, --limit and --sweep-wait cannot be negative")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return fmt.Errorf("drawing an id: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	play := newCanaryPlay(c, server, hex.EncodeToString(id))
	began := time.Now()
	failure := play.run(ctx)
	report := canaryReport{RequestID: play.request, Took: time.Since(began), Checks: play.checks, Passed: failure == nil}
	for _, k := range play.checks {
		report.Passed = report.Passed && k.Result != canaryFail
	}
	if c.JUnit != "" {
		if err := report.writeJUnit(c.JUnit, failure); err != nil {
			return err
		}
	}
	if err := report.print(con, c.JSON); err != nil {
		return err
	}
	switch {
	case failure != nil:
		return failure
	case !report.Passed:
		return errCanary
	}
	return nil
}

func (r *canaryReport) print(con *console, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(con.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		return nil
	}
	t := newTable(con.Stdout, "CHECK", "RESULT", "BEFORE", "AFTER", "TOOK", "REASON")
	counts := map[string]int64{}
	for _, k := range r.Checks {
		t.row(k.Name, k.Result, fmt.Sprint(k.Control), fmt.Sprint(k.After), k.Took.Round(time.Millisecond).String(), orDash(k.Reason))
		counts[k.Result]++
	}
	if err := t.close(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(con.Stdout, "\n%s passed, %d failed, %d not run, in %s. Request %s.\n",
		plural(counts[canaryPass], "check", "checks"), counts[canaryFail], counts[canaryNotRun], r.Took.Round(10*time.Millisecond), r.RequestID)
	return err
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     float64     `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    float64       `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
}

func (r *canaryReport) writeJUnit(name string, failure error) error {
	suite := junitSuite{Name: "memd canary", Tests: len(r.Checks), Time: r.Took.Seconds()}
	for _, k := range r.Checks {
		c := junitCase{Class: "memd.canary", Name: k.Name, Time: k.Took.Seconds()}
		message := &junitMessage{fmt.Sprintf("%s: before %d, after %d", k.Reason, k.Control, k.After)}
		switch k.Result {
		case canaryFail:
			c.Failure = message
			suite.Failures++
		case canaryNotRun:
			c.Skipped = message
			suite.Skipped++
		}
		suite.Cases = append(suite.Cases, c)
	}
	if failure != nil {
		text, _ := explain(failure)
		suite.Tests++
		suite.Errors++
		suite.Cases = append(suite.Cases, junitCase{Class: "memd.canary", Name: "run", Error: &junitMessage{text}})
	}
	data, err := xml.MarshalIndent(suite, "", "  ")
	if err == nil {
		err = os.WriteFile(name, append([]byte(xml.Header), append(data, '\n')...), 0o644) //nolint:gosec // A report for CI.
	}
	if err != nil {
		return fmt.Errorf("writing the JUnit file: %w", err)
	}
	return nil
}
