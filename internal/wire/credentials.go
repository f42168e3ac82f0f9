package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// MaxCredentials bounds a credentials file in bytes.
const MaxCredentials = 256 << 10

// AllAccounts is the account's name under which the file says what holds for
// every account of a provider that does not say otherwise.
const AllAccounts = "*"

// AllPrincipals is the name under which the file says which quotas hold for every
// principal that does not say otherwise.
const AllPrincipals = "*"

// CredentialsTable is what one version of a credentials file says. It is not
// changed once it is read.
type CredentialsTable struct {
	accounts map[string]map[string]CredentialsEntry // by provider and account
	// grants are the accounts that each principal may use; nil where the file
	// has no such section, and then every principal may use all.
	grants map[string][]grant
	denied map[string]bool          // ids of API keys
	quotas map[string]ingest.Quotas // by principal
}

// CredentialsEntry is what the file says of one account. Parts that it leaves
// out are "".
type CredentialsEntry struct {
	Credential    string // reference
	WebhookSecret string // reference
	BaseURL       string
	// Limits, if not nil, take the place of the contract's, all of them.
	Limits *budget.Limits
}

// grant is one pattern of accounts; "*" is any.
type grant struct{ provider, account string }

func (t *CredentialsTable) mayUse(principal, provider, account string) bool {
	return t.grants == nil || slices.ContainsFunc(t.grants[principal], func(g grant) bool {
		return (g.provider == "*" || g.provider == provider) && (g.account == "*" || g.account == account)
	})
}

// ParseCredentials reads the text of a credentials file, docs/CREDENTIALS.md.
// shown is the file's name in errors. providers says which contracts there are
// and which of them has webhooks; plainHTTP allows base URLs without TLS.
//
// The error holds every problem, each with line and field. No value of the file
// is part of it, and no name that is not a plain word: the likeliest mistake is
// the secret itself where its reference belongs.
func ParseCredentials(shown string, text []byte, providers map[string]*contract.Contract, plainHTTP bool) (*CredentialsTable, error) {
	r := &credentialsReader{shown: shown, providers: providers, plainHTTP: plainHTTP}
	table := &CredentialsTable{accounts: map[string]map[string]CredentialsEntry{}, denied: map[string]bool{}, quotas: map[string]ingest.Quotas{}}
	if root := r.root(text); root != nil {
		r.read(root, table)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b credentialsProblem) int { return a.line - b.line })
		lines := make([]string, len(r.problems))
		for i, p := range r.problems {
			lines[i] = fmt.Sprintf("%s:%d: %s", shown, p.line, p.text)
		}
		return nil, &credentialsError{text: strings.Join(lines, "\n"), where: r.where()}
	}
	return table, nil
}

// credentialsError is all problems of one file.
type credentialsError struct {
	text  string // a line for each
	where string // of the first
}

func (e *credentialsError) Error() string { return e.text }

// where is the place of the first problem, without anybody's name: "line 5,
// providers.example.default.credential, and 2 more".
func (r *credentialsReader) where() string {
	first := r.problems[0]
	text := fmt.Sprintf("line %d", first.line)
	switch {
	case strings.HasPrefix(first.field, "principals."):
		text += ", principals"
	case strings.HasPrefix(first.field, "quotas."):
		text += ", quotas"
	case first.field != "":
		text += ", " + first.field
	}
	if n := len(r.problems) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

type credentialsProblem struct {
	line  int
	field string // "" if it is none's
	text  string
}

// credentialsReader collects the problems of one file.
type credentialsReader struct {
	shown     string
	providers map[string]*contract.Contract
	plainHTTP bool
	problems  []credentialsProblem
}

func (r *credentialsReader) addf(n *yaml.Node, field, format string, args ...any) {
	p := credentialsProblem{line: 1, field: field, text: fmt.Sprintf(format, args...)}
	if n != nil && n.Line > 0 {
		p.line = n.Line
	}
	if field != "" {
		p.text = field + ": " + p.text
	}
	r.problems = append(r.problems, p)
}

// root gives the file's mapping, or nil with a problem.
func (r *credentialsReader) root(text []byte) *yaml.Node {
	if len(text) > MaxCredentials {
		r.addf(nil, "", "the file has %d bytes; at most %d are allowed", len(text), MaxCredentials)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var root, second yaml.Node
	switch err := dec.Decode(&root); {
	case errors.Is(err, io.EOF), err == nil && len(root.Content) != 1:
		r.addf(nil, "", "the file is empty; it begins with credentials: 1")
		return nil
	case err != nil:
		// The library's text can quote the file, so only its line is kept.
		r.addf(&yaml.Node{Line: lineOf(err)}, "", "not valid YAML")
		return nil
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		r.addf(&second, "", "there is a second document; one file holds one")
		return nil
	}
	return root.Content[0]
}

// lineOf finds the line in the text of the YAML library's error; 1 if it names
// none.
func lineOf(err error) int {
	_, rest, _ := strings.Cut(err.Error(), "line ")
	digits, _, _ := strings.Cut(rest, ":")
	if n, err := strconv.Atoi(digits); err == nil && n > 0 {
		return n
	}
	return 1
}

// member is one name of a mapping with its value.
type member struct {
	name       string
	key, value *yaml.Node
}

// members reads a mapping. With known names any other is a problem.
func (r *credentialsReader) members(n *yaml.Node, field string, known ...string) []member {
	if n.Kind != yaml.MappingNode || !r.plain(n, field) {
		if n.Kind != yaml.MappingNode {
			r.addf(n, field, "must be a mapping%s", of(known))
		}
		return nil
	}
	var list []member
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode || !r.plain(k, field):
			if k.Kind != yaml.ScalarNode {
				r.addf(k, field, "a name must be plain text")
			}
		case len(known) > 0 && !slices.Contains(known, k.Value):
			r.addf(k, field, "unknown field%s; known here: %s", quoted(k.Value), strings.Join(known, ", "))
		case slices.ContainsFunc(list, func(m member) bool { return m.name == k.Value }):
			r.addf(k, field, "a name is given twice%s", quoted(k.Value))
		default:
			list = append(list, member{k.Value, k, v})
		}
	}
	return list
}

func of(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " of " + strings.Join(names, ", ")
}

// quoted shows a name that was not expected only if it is a word such as a
// field's: it may be a secret in the wrong place.
func quoted(name string) string {
	if name == "" || len(name) > 20 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return " (not shown)"
	}
	return " " + name
}

// plain refuses what makes a file mean something else than it shows.
func (r *credentialsReader) plain(n *yaml.Node, field string) bool {
	ok := n.Anchor == "" && n.Alias == nil && n.Kind != yaml.AliasNode && n.Tag != "!!merge" && n.Tag != "!!binary" &&
		(!strings.HasPrefix(n.Tag, "!") || strings.HasPrefix(n.Tag, "!!"))
	if !ok {
		r.addf(n, field, "anchors, aliases and tags are not allowed")
	}
	return ok
}

// text reads a scalar; a problem gives "".
func (r *credentialsReader) text(n *yaml.Node, field string) string {
	if !r.plain(n, field) {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.addf(n, field, "must be text, and not empty")
		return ""
	}
	return n.Value
}

// list reads a sequence of texts.
func (r *credentialsReader) list(n *yaml.Node, field string) []*yaml.Node {
	if !r.plain(n, field) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.addf(n, field, "must be a list")
		return nil
	}
	return n.Content
}

// read reads the whole file. The version comes first, so that a file of another
// version is known as that before anything in it is judged.
func (r *credentialsReader) read(root *yaml.Node, table *CredentialsTable) {
	if root.Kind != yaml.MappingNode || len(root.Content) < 2 || root.Content[0].Value != "credentials" {
		r.addf(root, "credentials", "must be the first field: credentials: 1")
		return
	}
	if version := root.Content[1]; version.Kind != yaml.ScalarNode || version.Value != "1" {
		r.addf(version, "credentials", "must be 1, the only version this program reads")
		return
	}
	for _, m := range r.members(root, "", "credentials", "providers", "principals", "quotas", "denied_keys") {
		switch m.name {
		case "providers":
			for _, p := range r.members(m.value, "providers") {
				r.provider(p, table)
			}
		case "principals":
			table.grants = map[string][]grant{}
			for _, p := range r.members(m.value, "principals") {
				r.principal(p, table)
			}
		case "quotas":
			for _, p := range r.members(m.value, "quotas") {
				if p.name == AllPrincipals || r.name(p, "quotas", "a principal") {
					table.quotas[p.name] = r.quotas(p.value, "quotas."+p.name)
				}
			}
		case "denied_keys":
			for i, n := range r.list(m.value, "denied_keys") {
				field := fmt.Sprintf("denied_keys[%d]", i)
				id := r.text(n, field)
				if id != "" && !contract.ValidName(id) {
					r.addf(n, field, "must be the id of an API key: what stands between cf_ and the point, 1 to 64 of a-z, 0-9, _ and -")
				}
				table.denied[id] = true
			}
		}
	}
}

// name reads a name that will be shown in logs and answers.
func (r *credentialsReader) name(m member, field, what string) bool {
	switch {
	case !contract.ValidName(m.name):
		r.addf(m.key, field, "the name of %s must be 1 to 64 of a-z, 0-9, _ and -", what)
	case secretLike(m.name):
		r.addf(m.key, field, "the name of %s looks like a secret, and names are shown: choose another", what)
	default:
		return true
	}
	return false
}

// secretLike says whether a text is likely a secret: it starts as those do that
// can be told by it, or is long, has digits and no break.
func secretLike(text string) bool {
	return len(text) >= 20 && strings.ContainsAny(text, "0123456789") && !strings.ContainsAny(text, "_-") ||
		slices.ContainsFunc([]string{
			"sk-", "sk_", "rk_", "whsec_", "ghp_", "github_pat_", "xoxb-", "xoxp-", "eyJ", "AKIA", "r8_",
		}, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

func (r *credentialsReader) provider(m member, table *CredentialsTable) {
	if !r.name(m, "providers", "a provider") {
		return
	}
	c, known := r.providers[m.name]
	if !known {
		r.addf(m.key, "providers", "no contract is named%s; a new contract needs a restart", quotedName(m.name))
		return
	}
	field := "providers." + m.name
	table.accounts[m.name] = map[string]CredentialsEntry{}
	for _, a := range r.members(m.value, field) {
		if a.name != AllAccounts && !r.name(a, field, "an account") {
			continue
		}
		var entry CredentialsEntry
		at := field + "." + a.name
		for _, f := range r.members(a.value, at, "credential", "webhook_secret", "base_url", "limits") {
			switch at := at + "." + f.name; f.name {
			case "credential":
				entry.Credential = r.reference(f.value, at)
				if c.Credential.Place == contract.PlaceNone {
					r.addf(f.value, at, "the contract %s sends no credential", m.name)
				}
			case "webhook_secret":
				entry.WebhookSecret = r.reference(f.value, at)
				if c.Webhook == nil {
					r.addf(f.value, at, "the contract %s has no webhooks", m.name)
				}
			case "base_url":
				entry.BaseURL = r.baseURL(f.value, at)
			case "limits":
				entry.Limits = r.limits(f.value, at)
			}
		}
		table.accounts[m.name][a.name] = entry
	}
}

// limits reads what may be asked of an account at once and in a stretch of time.
// An empty mapping takes the contract's away.
func (r *credentialsReader) limits(n *yaml.Node, field string) *budget.Limits {
	var l budget.Limits
	for _, m := range r.members(n, field, "concurrency", "per_second", "per_minute") {
		most := budget.MaxRequests
		if m.name == "concurrency" {
			most = budget.MaxSlots
		}
		v, err := strconv.Atoi(r.text(m.value, field+"."+m.name))
		switch {
		case err != nil || v < 1 || v > most:
			r.addf(m.value, field+"."+m.name, "must be a whole number between 1 and %d", most)
		case m.name == "concurrency":
			l.Concurrency = v
		case l.Requests > 0:
			r.addf(m.value, field+"."+m.name, "per_second and per_minute exclude each other: give the one the provider names")
		case m.name == "per_second":
			l.Requests, l.Per = v, time.Second
		case m.name == "per_minute":
			l.Requests, l.Per = v, time.Minute
		}
	}
	return &l
}

// quotas reads what a principal may begin.
func (r *credentialsReader) quotas(n *yaml.Node, field string) (q ingest.Quotas) {
	for _, m := range r.members(n, field, "submits_per_minute", "open_operations", "cost_per_day") {
		if m.name == "cost_per_day" {
			q.Costs = r.costs(m.value, field+"."+m.name)
			continue
		}
		into, most := &q.Submits, ingest.MaxSubmits
		if m.name == "open_operations" {
			into, most = &q.Open, ingest.MaxOpen
		}
		v, err := strconv.Atoi(r.text(m.value, field+"."+m.name))
		if err != nil || v < 1 || v > most {
			r.addf(m.value, field+"."+m.name, "must be a whole number between 1 and %d", most)
			continue
		}
		*into = v
	}
	return q
}

// costs reads what a principal may spend, by unit.
func (r *credentialsReader) costs(n *yaml.Node, field string) map[string]contract.Decimal {
	costs := map[string]contract.Decimal{}
	for _, m := range r.members(n, field) {
		amount, ok := contract.ParseDecimal(r.text(m.value, field))
		switch {
		case !contract.ValidUnit(m.name):
			r.addf(m.key, field, "a unit must be 1 to 16 letters, digits, _ and -, as contracts have it")
		case !ok:
			r.addf(m.value, field, "must be a decimal with at most %d digits before and %d after the point", contract.DecimalWhole, contract.DecimalFraction)
		default:
			costs[m.name] = amount
		}
	}
	if len(costs) > maxUnits {
		r.addf(n, field, "has %d units; at most %d are allowed", len(costs), maxUnits)
	}
	return costs
}

const maxUnits = 8 // of costs, in one entry

// reference reads env:NAME or file:/PATH. What is neither is not quoted.
func (r *credentialsReader) reference(n *yaml.Node, field string) string {
	text := r.text(n, field)
	path, file := strings.CutPrefix(text, "file:")
	if text == "" || ValidReference(text) && (!file || filepath.IsAbs(path)) {
		return text
	}
	r.addf(n, field, "must be env:NAME or file:/ABSOLUTE/PATH, which lead to the secret; the secret itself belongs nowhere in this file (the value is not shown here)")
	return ""
}

// ValidReference says whether text is env:NAME or file:PATH, and no secret in
// the place of either.
func ValidReference(text string) bool {
	scheme, name, _ := strings.Cut(text, ":")
	switch scheme {
	case "env":
		first := strings.IndexFunc(name, func(c rune) bool {
			return c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
		})
		return name != "" && first < 0 && (name[0] < '0' || name[0] > '9') && len(name) <= 128 && !secretLike(name)
	case "file":
		return name != ""
	}
	return false
}

func (r *credentialsReader) baseURL(n *yaml.Node, field string) string {
	text := r.text(n, field)
	if text == "" {
		return ""
	}
	_, err := httprule.Origin(text)
	rest := strings.ContainsAny(text, "?#")
	if err != nil {
		r.addf(n, field, "%v", err) // it does not quote the address
	}
	if rest {
		r.addf(n, field, "must have no query and no fragment")
	}
	switch {
	case err != nil, rest:
	case strings.HasPrefix(strings.ToLower(text), "http:") && !r.plainHTTP:
		r.addf(n, field, "is plain http, where a credential can be read on the way: give --allow-http if that is meant")
	default:
		return text
	}
	return ""
}

func (r *credentialsReader) principal(m member, table *CredentialsTable) {
	if !r.name(m, "principals", "a principal") {
		return
	}
	field := "principals." + m.name
	table.grants[m.name] = []grant{}
	for _, f := range r.members(m.value, field, "accounts") {
		for i, n := range r.list(f.value, field+".accounts") {
			at := fmt.Sprintf("%s.accounts[%d]", field, i)
			text := r.text(n, at)
			if text == "" {
				continue
			}
			provider, account, ok := strings.Cut(text, "/")
			switch {
			case !ok || provider != "*" && !contract.ValidName(provider) || account != "*" && !contract.ValidName(account),
				provider == "*" && account != "*":
				r.addf(n, at, `must be PROVIDER/ACCOUNT, "PROVIDER/*" or "*/*"`)
			case provider != "*" && r.providers[provider] == nil:
				r.addf(n, at, "no contract is named%s", quotedName(provider))
			default:
				table.grants[m.name] = append(table.grants[m.name], grant{provider, account})
			}
		}
	}
}

// quotedName shows a valid name unless it looks like a secret.
func quotedName(name string) string {
	if secretLike(name) || len(name) > 32 {
		return " so (the name is not shown)"
	}
	return " " + name
}
