package erasure_test

import (
	"slices"
	"strings"
)

// sqlDump renders everything that an erasure leaves of a tenant in the tables,
// but for targets' counts before, which they may fail to give, times, transaction ids, request ids and the names of KMS versions.
const sqlDump = `
SELECT concat_ws(' ', 'memory', memory_id, owner_no, kind, month, contributor_no, contributor_session, more_contributions, version)
  FROM memd.memories WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'contribution', memory_id, contributor_no, contributor_session) FROM memd.memory_contributions WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'source', memory_id, ordinal, source_memory, source_subject, source_session) FROM memd.memory_sources WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'subject', subject_no, encode(user_ref, 'hex'), kind, CASE WHEN retired_at IS NOT NULL THEN 'retired' END) FROM memd.subjects WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'session', subject_no, session_no, encode(session_ref, 'hex'), state, CASE WHEN sealed_id = '' THEN 'nameless' END) FROM memd.sessions WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'fence', encode(user_ref, 'hex'), state, CASE WHEN lifted_at >= raised_at AND erased_before >= raised_at THEN 'lifted' END) FROM memd.fences WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'tombstone', kind, encode(ref, 'hex'), owner_no, through_version) FROM memd.tombstones WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'hide', owner_no, contributor_no, contributor_session) FROM memd.hides WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'erasure', kind, state, encode(user_ref, 'hex'), encode(session_ref, 'hex'), finished_at IS NOT NULL) FROM memd.erasures WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'step', step, done, counts - 'rotation' - 'checks' - 'control' - 'dropped', counts->'rotation'->'epoch', finished_at IS NOT NULL) FROM memd.erasure_steps WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'remembers', sealed_user_id IS NULL, sealed_session_id IS NULL, sealed_probes IS NULL, sealed_salt IS NULL, tries, failure) FROM memd.erasures WHERE tenant_no = $1
UNION ALL SELECT 'receipts ' || count(*) FROM memd.receipts WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'head', subject_no, session_no, next_seq, events) FROM memd.session_heads WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'event', subject_no, session_no, seq) FROM memd.session_events WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'session state', subject_no, session_no) FROM memd.session_state WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'user state', subject_no) FROM memd.user_state WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'app state', app_no, contributor_no) FROM memd.app_state WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'artifact', subject_no, session_no, last_version) FROM memd.artifacts WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'version', subject_no, session_no, version, chunks, size) FROM memd.artifact_versions WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'chunk', subject_no, session_no, chunk_no, length(sealed)) FROM memd.artifact_chunks WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'purged', subject_no) FROM memd.erasure_subjects WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'tenant', state) FROM memd.tenants WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'target', name) FROM memd.purge_targets WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'answer', name, op, round, acknowledged, code, count_after) FROM memd.purge_acks WHERE tenant_no = $1 AND op > 1
UNION ALL SELECT concat_ws(' ', 'fallen', memory_id, owner_no, kind, sources) FROM memd.erasure_fallen WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'puncture', path, epoch) FROM memd.punctures WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'epoch', epoch) FROM memd.tenant_keys WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'tree', epoch) FROM memd.key_trees WHERE tenant_no = $1
UNION ALL SELECT concat_ws(' ', 'rotation', epoch, state, destroyed_at IS NOT NULL, destroy_due IS NOT NULL) FROM memd.rotations WHERE tenant_no = $1`

// dump is the state of a tenant in words that are the same in every run.
func (w *world) dump(p people) string {
	w.t.Helper()
	lines := w.strings(sqlDump, p.tenant.No)
	names := strings.NewReplacer(p.labels...)
	for i := range lines {
		lines[i] = names.Replace(lines[i])
	}
	slices.Sort(lines)
	if len(lines) < 20 {
		w.t.Errorf("only %d lines: the dump looks in the wrong place", len(lines))
	}
	return strings.Join(lines, "\n") + "\n"
}
