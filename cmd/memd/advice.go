package main

import memdv1 "forgettable.dev/memd/gen/memd/v1"

// advice says what a person can do about each reason of the API.
var advice = map[memdv1.Reason]string{
	memdv1.Reason_REASON_INTERNAL:          "This is a fault of memd's. The server's log has the details.",
	memdv1.Reason_REASON_INVALID:           "Change what the message names, and try again.",
	memdv1.Reason_REASON_MALFORMED:         "Client and server may be of different versions: compare \"memd --version\" on both sides.",
	memdv1.Reason_REASON_UNAUTHENTICATED:   "Check MEMD_API_KEY: it is not a key of this server, or was revoked.",
	memdv1.Reason_REASON_PERMISSION_DENIED: "Use a key with another role: agent for memories, sessions and artifacts, eraser for forget, operator for tenant, apikey, target and hold, approver for tenant approve.",
	memdv1.Reason_REASON_NOT_FOUND:         "It is not there, or it belongs to somebody else. Check the id, --user and --app, and whose key it is.",
	memdv1.Reason_REASON_EXISTS:            "Choose another name, or repeat the call with the arguments of the first time.",
	memdv1.Reason_REASON_NOT_APPROVED:      "Have \"memd tenant dry-run\" looked at and approved by somebody else: \"memd tenant approve\".",
	memdv1.Reason_REASON_TENANT_INACTIVE:   "See \"memd tenant get\"; only an active tenant can be used.",

	memdv1.Reason_REASON_FENCED:                 "The user is being erased. Try again when that is done.",
	memdv1.Reason_REASON_SESSION_FORGOTTEN:      "The conversation was erased and its id stays refused. Use another session id.",
	memdv1.Reason_REASON_MEMORY_DELETED:         "The memory was deleted and stays so. Store the words under another event id.",
	memdv1.Reason_REASON_SOURCE_TIME_REQUIRED:   "Say when the words were spoken with --source-time.",
	memdv1.Reason_REASON_ERASED_BEFORE:          "The words are older than the user's erasure and stay forgotten.",
	memdv1.Reason_REASON_MONTH_KEPT:             "The tenant's policy or a legal hold keeps it: see memd retention plan.",
	memdv1.Reason_REASON_MONTH_EXPIRED:          "Retention has expired that month. Nothing can be stored in it.",
	memdv1.Reason_REASON_SOURCE_GONE:            "Read the sources again, and derive again from those that are left.",
	memdv1.Reason_REASON_STALE:                  "Nothing was written. Try again.",
	memdv1.Reason_REASON_VERSION_CONFLICT:       "Somebody changed it first. Read it again.",
	memdv1.Reason_REASON_SESSION_CHANGED:        "Somebody wrote to the conversation first. Get it again, and decide again.",
	memdv1.Reason_REASON_STATE_FULL:             "Remove entries of the state, or keep large values as artifacts.",
	memdv1.Reason_REASON_REQUEST_REUSED:         "Use another --request-id, or leave it out.",
	memdv1.Reason_REASON_TOO_MANY_CONTRIBUTIONS: "Derive it from fewer sources.",

	memdv1.Reason_REASON_SHREDDED:             "The key was destroyed, so this is gone for good.",
	memdv1.Reason_REASON_KEY_UNAVAILABLE:      "The server cannot reach its key service. Nothing was written; try again later.",
	memdv1.Reason_REASON_CORRUPT:              "Stored data does not verify. The server's log says which.",
	memdv1.Reason_REASON_EMBEDDER_UNAVAILABLE: "The server cannot reach its embedder. Nothing was written; try again later.",
	memdv1.Reason_REASON_DATABASE_BUSY:        "The server has too much to do. Nothing was written; try again later.",
	memdv1.Reason_REASON_EXPORT_NOT_READY:     "Look at \"memd export status\": while it is being made, wait; what has ended is started anew.",
	memdv1.Reason_REASON_EXPORTS_UNAVAILABLE:  "Set --exports (MEMD_EXPORTS) for memd serve and memd worker alike, and see that both reach the place.",
	memdv1.Reason_REASON_TOO_MANY_STREAMS:     "Nothing was written; try again when other files have passed. An operator raises --max-artifact-streams of \"memd serve\".",
	memdv1.Reason_REASON_QUOTA_REACHED:        "Delete or forget something, which makes room within seconds, or have the quota raised: \"memd tenant policy --max-rows --max-bytes\".",
	memdv1.Reason_REASON_TOO_MANY_CALLS:       "Nothing was done; try again in a moment. An operator raises the quota: \"memd tenant policy --max-calls\".",
	memdv1.Reason_REASON_DATABASE_UNAVAILABLE: "The server cannot reach its database. A write may have happened; repeating it with the same ids is safe.",
	memdv1.Reason_REASON_LEDGER_UNAVAILABLE:   "The server cannot reach its ledger. Try again later, with the same ids.",
	memdv1.Reason_REASON_GATE_CLOSED:          "The server's log says why. If it stays so, the operator runs \"memd restore\".",
	memdv1.Reason_REASON_SCHEMA_VERSION:       "Run \"memd migrate\" with the server's version of memd.",
	memdv1.Reason_REASON_ERASURE_UNFINISHED:   "The erasure goes on by itself. Repeat the command with the same --request-id for its report.",

	memdv1.Reason_REASON_TARGET_UNAVAILABLE: "A purge target did not do what it was asked. It is tried again by itself.",
	memdv1.Reason_REASON_TARGET_REFUSED:     "A purge target refuses: check its secret, its address and its rights with \"memd target test\".",

	memdv1.Reason_REASON_CANCELED:          "A write may have happened; repeating it with the same ids is safe.",
	memdv1.Reason_REASON_DEADLINE_EXCEEDED: "A write may have happened. Give it longer with --timeout (MEMD_TIMEOUT).",
	memdv1.Reason_REASON_TOO_LARGE:         "Ask for less, or send less at a time.",
	memdv1.Reason_REASON_UNIMPLEMENTED:     "The server is older than this command, or is not memd: check --url (MEMD_URL).",
}
