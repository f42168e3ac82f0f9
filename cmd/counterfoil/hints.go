package main

import "github.com/counterfoil/counterfoil/client"

// hint is the advice of a problem in the words of this command line. The service
// gives it in those of HTTP, for callers that speak that.
func hint(p *client.Problem) string {
	if own := ownHint(p.Code); own != "" {
		return own
	}
	return p.Hint
}

// ownHint is "" where the service's words fit here, too.
func ownHint(code string) string {
	switch code {
	case "idempotency_key_missing", "idempotency_key_invalid":
		return "give --key 1 to 255 visible ASCII characters, or leave it out: one is made"
	case "idempotency_key_reused":
		return "counterfoil get shows what the key did; only a new intent takes a new --key, or it is done twice"
	case "precondition_required", "precondition_invalid":
		return "give --version as counterfoil get --output json shows it, or leave it out"
	case "stale":
		return "look again with counterfoil get, and decide again"
	case "cursor_invalid":
		return "leave out --cursor, or give the same filters as for the page before"
	case "unauthenticated":
		return "give a key of this installation in COUNTERFOIL_KEY or with --key-file; counterfoil principal list on its machine shows which are in use"
	case "forbidden":
		return "the operator makes keys that may do more: counterfoil principal list on the machine of the service shows what this one may"
	case "account_not_allowed":
		return "give another --account, or ask the operator for this one"
	case "not_found":
		return "check the id; operations of other principals are not shown"
	case "method_not_allowed", "unsupported_media_type", "request_malformed", "headers_too_large", "transfer_coding_unsupported",
		"http_version_unsupported", "expectation_failed":
		return "is the service of another version than this command? counterfoil version says this one's"
	case "unknown_provider":
		return "counterfoil contract list shows the built-in ones; the operator knows which others there are"
	case "self_approval":
		return "somebody with the key of another principal approves it; counterfoil get --output json shows its decision_url"
	case "approval_differs":
		return "look again with counterfoil get, and give --digest as it shows it"
	case "cost_exceeds_max":
		return "ask for less, or give a larger --max-cost"
	case "cost_unknown":
		return "correct the parameters that it names, of which the cost is made; or leave out --max-cost, if that is what it names and any cost will do"
	case "rate_exceeded", "operation_moving":
		return "send it again in a while with the same --key"
	case "cost_quota_exceeded":
		return "send it again with the same --key once there is room, or ask for less; the operator sets what may be spent"
	case "too_many_open":
		return "send it again with the same --key once some have ended; counterfoil list shows them: cancel what is not needed, and decide on what has stopped"
	case "not_held":
		return "counterfoil holds lists them; a hold on one provider and the one on all are released each by itself"
	case "hold_is_stronger":
		return "leave it, or give --replace if the weaker one is to take its place"
	case "risk_not_accepted":
		return "look for the first job and adopt it; only if a second one is acceptable: --accept-risk"
	case "result_not_ready":
		return "counterfoil watch waits for it"
	case "result_not_accepted":
		return "look at it with --unaccepted, then decide: accept_result or retry_collection"
	case "decision_not_allowed":
		return "counterfoil get lists the decisions that are allowed"
	case "validation_failed":
		return "correct what is listed above"
	case "too_many_streams":
		return "end another watch, or try again later"
	case "signature_invalid":
		return "" // no command signs anything
	case "internal_error", "store_unavailable", "storage_low", "body_incomplete", "request_timeout":
		return "repeat the command with the same key; if it stays, ask the operator, who has counterfoil doctor"
	case "keys_unavailable":
		return "the operator must repair the keys file: counterfoil doctor --data says what is wrong with it"
	}
	return ""
}
