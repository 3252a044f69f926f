package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/shred"
)

// envPassword is what a tool of globex's read from a .env file.
const envPassword = "quartz-Zephyr-0417-umbra"

// leave takes globex through the end of its contract: an operator suspends and
// drains it and asks for the purge, and somebody else approves.
func (d *demo) leave(ctx context.Context) (err error) {
	d.section("Globex's contract ends: everything of theirs has to go, by two persons")
	switch d.c.Instead {
	case DoNothing:
		d.show("and nobody does anything")
	case DeleteRows:
		if err := d.live.deleteTenant(ctx, d.globex.tenant); err != nil {
			return err
		}
		d.show("and its rows are deleted")
	default:
		if err := d.purge(ctx); err != nil {
			return err
		}
	}
	left, err := d.globex.things(ctx, d.live)
	if err != nil {
		return err
	}
	versions, err := d.versions(ctx, d.globex)
	if err != nil {
		return err
	}
	enabled, scheduled := active(versions)
	d.check(len(left) == 0 && enabled == 0 && scheduled > 0 && d.purged.GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE,
		"Nothing of globex is left, and no key version of theirs can be used",
		"by SQL: %d things; key versions: %d enabled, %d waiting to be destroyed for good", len(left), enabled, scheduled)
	return d.checkPassword(ctx)
}

// purge is the way out, and what is refused on it.
func (d *demo) purge(ctx context.Context) error {
	for _, to := range []memdv1.TenantState{
		memdv1.TenantState_TENANT_STATE_SUSPENDED, memdv1.TenantState_TENANT_STATE_EXPORTING, memdv1.TenantState_TENANT_STATE_DRAINED,
	} {
		_, err := d.operator.Admin.MoveTenant(ctx, &memdv1.MoveTenantRequest{Tenant: d.globex.name, State: to, Reason: "the contract has ended"})
		if err != nil {
			return fmt.Errorf("moving globex: %w", err)
		}
		d.item("%s", strings.ToLower(strings.TrimPrefix(to.String(), "TENANT_STATE_")))
	}
	d.endRow()
	_, err := d.globex.list(ctx, d.globex.users()[0])
	refused := memdv1.Reason_REASON_UNSPECIFIED
	if err != nil {
		refused = d.c.Reason(err)
	}
	d.check(refused == memdv1.Reason_REASON_TENANT_INACTIVE, "Its agents are let in no more, and until the purge begins there is a way back", "List of a user's memories: %s", name(refused))

	request := uuid.NewString()
	ask := &memdv1.DeleteTenantRequest{Tenant: d.globex.name, ConfirmDisplayName: d.globex.display, RequestId: request, Wait: soon()}
	_, err = d.operator.Erasure.DeleteTenant(ctx, ask)
	refused = memdv1.Reason_REASON_UNSPECIFIED
	if err != nil {
		refused = d.c.Reason(err)
	}
	d.check(refused == memdv1.Reason_REASON_NOT_APPROVED, "One person alone cannot purge it", "DeleteTenant by the operator: %s", name(refused))

	made, err := d.operator.Admin.CreateApiKey(ctx, &memdv1.CreateApiKeyRequest{Name: "bob", Roles: []memdv1.Role{memdv1.Role_ROLE_APPROVER}})
	if err != nil {
		return fmt.Errorf("making an approver's key: %w", err)
	}
	approver, err := d.c.Connect(d.url, made.GetSecret())
	if err != nil {
		return err
	}
	shown, err := approver.Erasure.DryRun(ctx, &memdv1.DryRunRequest{Tenant: d.globex.name})
	if err != nil {
		return fmt.Errorf("looking at what would go: %w", err)
	}
	d.show("the approver's dry run: %q, %d users and scopes, %d conversations", shown.GetDisplayName(), shown.GetSubjects(), shown.GetSessions())
	_, err = approver.Erasure.ApproveDeletion(ctx, &memdv1.ApproveDeletionRequest{
		Tenant: d.globex.name, ConfirmDisplayName: d.globex.display, Digest: shown.GetDigest(),
	})
	if err != nil {
		return fmt.Errorf("approving: %w", err)
	}
	if _, err := d.operator.Erasure.DeleteTenant(ctx, ask); err != nil {
		return fmt.Errorf("purging globex: %w", err)
	}
	d.purged, err = d.await(ctx, d.globex, request)
	return err
}

// checkPassword looks for what a tool of globex's read, in the old backup.
func (d *demo) checkPassword(ctx context.Context) (err error) {
	copied, err := openWitness(ctx, d.dev.Cluster.URL(restoredAfter, ""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.close()) }()
	all, err := d.globex.things(ctx, copied)
	if err != nil {
		return err
	}
	keys, err := d.keysAtHand(ctx, d.globex.tenant, d.live, copied)
	if err != nil {
		return err
	}
	defer keys.drop()
	read, passwords := 0, 0
	for i := range all {
		text, ok := all[i].readWith(keys)
		if ok {
			read++
		}
		if strings.Contains(text, envPassword) {
			passwords++
		}
	}
	d.check(read == 0 && passwords == 0 && len(all) > 0 && d.before.passwords > 0,
		"In the backup from before, all of it is bytes that nobody can read, the password from the .env file too",
		"%d things of globex's: %d can be read with %d key trees that open; the password: in %d, once in %d",
		len(all), read, len(keys), passwords, d.before.passwords)
	return nil
}

// versions lists the versions of a customer's key.
func (d *demo) versions(ctx context.Context, c *customer) ([]shred.Version, error) {
	versions, err := d.keys.worker.List(ctx, d.kmsKeys[c.tenant])
	if err != nil {
		return nil, fmt.Errorf("listing the key versions of %s: %w", c.name, err)
	}
	return versions, nil
}

// active counts the versions that are billed.
func active(versions []shred.Version) (enabled, scheduled int) {
	for _, v := range versions {
		switch v.State {
		case shred.VersionEnabled:
			enabled++
		case shred.VersionDestroyScheduled:
			scheduled++
		}
	}
	return enabled, scheduled
}

// What a program does that knows nothing of keys.
var sqlDeleteTenant = []string{
	`DELETE FROM memd.memories WHERE tenant_no = $1`,
	`DELETE FROM memd.session_events WHERE tenant_no = $1`,
	`DELETE FROM memd.session_state WHERE tenant_no = $1`,
	`DELETE FROM memd.user_state WHERE tenant_no = $1`,
	`DELETE FROM memd.app_state WHERE tenant_no = $1`,
	`DELETE FROM memd.artifact_chunks WHERE tenant_no = $1`,
	`DELETE FROM memd.artifact_versions WHERE tenant_no = $1`,
	`DELETE FROM memd.artifacts WHERE tenant_no = $1`,
}

func (w *witness) deleteTenant(ctx context.Context, tenant memd.TenantNo) error {
	for _, sql := range sqlDeleteTenant {
		if _, err := w.conn.Exec(ctx, sql, tenant); err != nil {
			return fmt.Errorf("deleting a tenant's rows: %w", err)
		}
	}
	return nil
}
