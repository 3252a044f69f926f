package demo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/tenants"
)

// ingestionDelay is how late words may arrive in the demo's tenants: as long, and
// no longer, as the checks take that come before the second sweep.
const ingestionDelay = 2 * time.Second

// The people of acme whom the demo speaks about.
const (
	mara  = "mara.lindgren@example.org"
	jonas = "jonas.weber@example.org"
	owen  = "owen.hughes@example.org"
)

// customer is a tenant with one app.
type customer struct {
	name, display, app string
	// key is the secret of the agent's API key, and api what it calls with it.
	key    string
	api    API
	tenant memd.TenantNo
	talks  []conversation
	// added are the ids of the rows of each session, in order.
	added map[string][]string
	texts map[string]string // by memory id: what was stored, derived rows too
	// said is what is in events, state and files, as it is written there.
	said []string
}

// users returns the customer's users in the order of the file.
func (c *customer) users() []string {
	var out []string
	for _, t := range c.talks {
		if !slices.Contains(out, t.User) {
			out = append(out, t.User)
		}
	}
	return out
}

// customers makes the two tenants as an operator does: over the API.
func (d *demo) customers(ctx context.Context) error {
	talks, err := conversations()
	if err != nil {
		return err
	}
	secret, err := d.dev.CreateKey(ctx, tenants.Tenant{No: auth.Installation}, "operator", auth.Operator)
	if err != nil {
		return err
	}
	if d.operator, err = d.c.Connect(d.url, secret); err != nil {
		return err
	}
	d.acme = &customer{name: "acme", display: "Acme Pharmacies", app: "pharmacy"}
	d.globex = &customer{name: "globex", display: "Globex Travel", app: "travel"}
	d.section("Two tenants, each with a key of its own at the key service")
	for _, c := range []*customer{d.acme, d.globex} {
		c.talks, c.added, c.texts = talks[c.name], map[string][]string{}, map[string]string{}
		_, err := d.operator.Admin.CreateTenant(ctx, &memdv1.CreateTenantRequest{
			Name: c.name, DisplayName: c.display, Policy: &memdv1.Policy{IngestionDelay: durationpb.New(ingestionDelay)},
		})
		if err != nil {
			return fmt.Errorf("creating tenant %s: %w", c.name, err)
		}
		key, err := d.operator.Admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{
			Tenant: c.name, Name: "agent", Roles: []memdv1.Role{memdv1.Role_ROLE_AGENT, memdv1.Role_ROLE_ERASER},
		})
		if err != nil {
			return fmt.Errorf("creating an API key of %s: %w", c.name, err)
		}
		c.key = key.GetSecret()
		if c.api, err = d.c.Connect(d.url, c.key); err != nil {
			return err
		}
		if c.tenant, err = d.live.tenant(ctx, c.name); err != nil {
			return err
		}
		d.show("%-7s %-16s app %-9s %d users, %d conversations", c.name, c.display, c.app, len(c.users()), len(c.talks))
	}
	return d.register(ctx)
}

// rows are the turns of a conversation as rows to add, the same that AddSession
// makes of its events.
func (c *customer) rows(talk *conversation) []*memdv1.Row {
	var rows []*memdv1.Row
	for i, t := range talk.Turns {
		rows = append(rows, &memdv1.Row{
			Scope: c.scope(talk.User), SessionId: talk.Session, Kind: memdv1.Kind_KIND_RAW, Text: t.Text,
			Metadata: map[string]string{"author": t.Author}, EventId: strconv.Itoa(i),
			SourceTime: timestamppb.New(talk.spoken(i)),
		})
	}
	return rows
}

// scope is a user's, or with "" the app's shared one.
func (c *customer) scope(user string) *memdv1.Scope {
	if user == "" {
		return &memdv1.Scope{Owner: &memdv1.Scope_Shared{Shared: &memdv1.SharedScope{App: c.app}}}
	}
	return &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: c.app, UserId: user}}}
}

// derivedRows are what an agent drew from the conversations, by memory id.
type derivedRows struct {
	own        string // of Mara's alone, in her scope
	household  string // of Mara's and Jonas's words, in his scope
	notice     string // of household, in the shared scope: a summary of a summary
	grapefruit string // of Owen's words, in the shared scope
	counter    string // nobody's words, in the shared scope
}

// falls are those that must go with Mara.
func (r *derivedRows) falls() []string { return []string{r.own, r.household, r.notice} }

// derive stores what an agent would: summaries and facts with their sources.
func (d *demo) derive(ctx context.Context) (err error) {
	c, r := d.acme, &d.derived
	r.own, err = c.add(ctx, &memdv1.Row{
		Scope: c.scope(mara), Kind: memdv1.Kind_KIND_SUMMARY,
		Text:    "Mara's daughter Ida, seven, has asthma: salbutamol with a spacer, preventer in amber weeks, cats are a trigger.",
		Sources: c.sources("mara-2025-01-inhaler", "mara-2025-02-school"),
	})
	if err != nil {
		return err
	}
	r.household, err = c.add(ctx, &memdv1.Row{
		Scope: c.scope(jonas), Kind: memdv1.Kind_KIND_SUMMARY,
		Text:    "Jonas collects parcels for Mara's household on Thursdays; Ida's inhalers otherwise go to 14 Tannery Lane.",
		Sources: append(c.sources("jonas-2025-02-errand"), c.sources("mara-2025-01-inhaler")...),
	})
	if err != nil {
		return err
	}
	r.notice, err = c.add(ctx, &memdv1.Row{
		Scope: c.scope(""), Kind: memdv1.Kind_KIND_FACT,
		Text:    "Parcels for the household at Tannery Lane may be handed out at the counter on Thursdays.",
		Sources: []*memdv1.Source{{Source: &memdv1.Source_MemoryId{MemoryId: r.household}}},
	})
	if err != nil {
		return err
	}
	r.grapefruit, err = c.add(ctx, &memdv1.Row{
		Scope: c.scope(""), Kind: memdv1.Kind_KIND_FACT,
		Text:    "Grapefruit does not matter for ramipril.",
		Sources: c.sources("owen-2025-02-pressure"),
	})
	if err != nil {
		return err
	}
	r.counter, err = c.add(ctx, &memdv1.Row{
		Scope: c.scope(""), Kind: memdv1.Kind_KIND_RAW, Impersonal: true,
		Text: "The counter is open until half past seven on Thursdays.",
	})
	if err != nil {
		return err
	}
	d.show("every conversation is kept with its events, state and a transcript, and taken into memory:")
	d.show("%d memories of acme, 3 of them derived and with Mara's words in them, and %d of globex", len(c.texts), len(d.globex.texts))
	return nil
}

// add stores one row and remembers its text.
func (c *customer) add(ctx context.Context, row *memdv1.Row) (id string, err error) {
	resp, err := c.api.Memory.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{row}})
	if err != nil {
		return "", fmt.Errorf("storing a row of %s: %w", c.name, err)
	}
	id = resp.GetResults()[0].GetMemoryId()
	c.texts[id] = row.GetText()
	return id, nil
}

// sources names every row of some sessions as a source.
func (c *customer) sources(sessions ...string) []*memdv1.Source {
	var out []*memdv1.Source
	for _, s := range sessions {
		for _, id := range c.added[s] {
			out = append(out, &memdv1.Source{Source: &memdv1.Source_MemoryId{MemoryId: id}})
		}
	}
	return out
}
