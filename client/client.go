// Package client speaks to Counterfoil's HTTP API.
//
// It uses the standard library only and may be copied out.
//
// # Keys
//
// Everything that changes something carries an idempotency key, which names one
// intent for ever. Make it once for each thing that is wanted, keep it with that,
// and give it to [Client.Submit], or to [Client.Keyed] for the other calls. A call
// that is given none makes one for itself and keeps it for all of its tries.
//
// # Errors
//
// An answer that is not a success is a [*Problem]; no answer at all is a
// [*LostError]. Both say whether the same request may be sent again, when, and
// with which key.
//
// # Tries
//
// A request whose answer was lost, and one whose problem says that the same request
// may succeed later, is sent again by the client itself as [Retry] says, with the key
// it had. It never makes another key for a request, sends nothing again after a
// problem that says never, and gives up when the context ends.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxAnswer = 16 << 20 // bytes of a JSON answer

	mediaProblem = "application/problem+json"
)

// ErrHeader says that a key has a control character and was not sent: it cannot
// stand in the header that is named.
var ErrHeader = errors.New("a control character cannot be sent in a header")

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base string
	key  string
	http *http.Client
	once string // the idempotency key of Keyed; "" makes one for each call

	retry Retry
}

// Keyed gives a client whose calls that change something carry the idempotency
// key, so that one whose answer was lost can be made again and is done once. Make
// one key for each intent. A call that takes a key itself uses its own; other
// clients make a new one for each call.
func (c *Client) Keyed(key string) *Client {
	keyed := *c
	keyed.once = key
	return &keyed
}

// onceKey is the header of a call that is to be done once.
func (c *Client) onceKey() map[string]string {
	key := c.once
	if key == "" {
		key = rand.Text()
	}
	return map[string]string{idempotencyKey: quote(key)}
}

// New makes a client for the server at baseURL, "http://127.0.0.1:8420". key is
// the bearer text, "cf_…"; "" sends none. A nil hc means a client of its own
// without redirects; its time limit, if any, must exceed the longest wait, and cuts
// streams, which then go on in new ones.
func New(baseURL, key string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, errors.New("the server's address must look like http://host:port")
	}
	if hc == nil {
		hc = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &Client{base: strings.TrimRight(baseURL, "/"), key: key, http: hc}, nil
}

// Submission asks for an operation.
type Submission struct {
	Provider  string            `json:"provider"`
	Account   string            `json:"account,omitempty"`
	Action    string            `json:"action,omitempty"`
	Params    json.RawMessage   `json:"params"` // sent as it is
	Deadlines *Deadlines        `json:"deadlines,omitempty"`
	NotBefore string            `json:"not_before,omitempty"`
	Expect    string            `json:"expect,omitempty"`
	MaxCost   string            `json:"max_cost,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Approval  string            `json:"approval,omitempty"`
	// Replaces and RetryOf name an earlier operation of yours. While that may still
	// create a job it is refused, unless AllowOverlap says that two jobs are acceptable.
	Replaces     string `json:"replaces,omitempty"`
	RetryOf      string `json:"retry_of,omitempty"`
	AllowOverlap bool   `json:"allow_overlap,omitempty"`
	Adopt        *Adopt `json:"adopt,omitempty"` // nil: a job is created
	Session      string `json:"session,omitempty"`
	Reference    string `json:"client_reference,omitempty"` // a name of your own, by which lists find it
}

// Adopt names a job that was created elsewhere: it is followed, and none is created.
type Adopt struct {
	JobID string `json:"job_id"` // as the provider calls it
}

// Deadlines are wishes: lengths of time ("90s", "7d") or RFC 3339 times.
type Deadlines struct {
	Approval string `json:"approval,omitempty"`
	Create   string `json:"create,omitempty"`
	Result   string `json:"result,omitempty"`
	Cancel   string `json:"cancel,omitempty"`
	Collect  string `json:"collect,omitempty"`
}

// Operation is one operation as the server shows it. Raw is its JSON, whole.
type Operation struct {
	ID         string           `json:"id"`
	Principal  string           `json:"principal"` // whose it is, if that is another than the caller's
	Provider   string           `json:"provider"`
	Account    string           `json:"account"`
	State      string           `json:"state"`
	Terminal   bool             `json:"terminal"` // nothing moves it any more
	Done       bool             `json:"done"`     // terminal, or waiting for a decision
	Quarantine string           `json:"quarantine"`
	Outcome    string           `json:"outcome"`
	Reason     string           `json:"reason"`
	WaitingFor string           `json:"waiting_for"`
	Because    string           `json:"because"`
	NextLook   *time.Time       `json:"next_look"`
	Started    time.Time        `json:"started"`
	Since      time.Time        `json:"since"`
	NotBefore  *time.Time       `json:"not_before"`
	Session    string           `json:"session"`
	Reference  string           `json:"client_reference"`
	Replaces   string           `json:"replaces"`
	RetryOf    string           `json:"retry_of"`
	ReplacedBy []string         `json:"replaced_by"` // the newest that take its place
	RetriedBy  []string         `json:"retried_by"`  // the newest that are other tries of it
	Paused     *Paused          `json:"paused"`      // nil: it is not
	Tags       []Tag            `json:"tags"`
	Expect     string           `json:"expect"`   // the rule that the result is held against
	Cost       *Cost            `json:"cost"`     // nil: the contract does not say
	Approval   *Approval        `json:"approval"` // nil: it needs none
	Guarantee  Guarantee        `json:"guarantee"`
	Attempts   Attempts         `json:"attempts"`
	Job        *Job             `json:"job"`
	Input      *Input           `json:"input"`
	Cancel     *Cancel          `json:"cancel"`
	Cleanup    *Cleanup         `json:"cleanup"`
	Deadlines  RunningDeadlines `json:"deadlines"`
	Problem    *ProviderProblem `json:"problem"`
	Result     *ResultMeta      `json:"result"`
	Candidates []string         `json:"candidates"`
	Strays     []string         `json:"strays"`
	Allowed    []AllowedAction  `json:"allowed"`
	// DecisionURL is a page of the service for the person who is to decide or to approve,
	// under its address; "" where nobody is.
	DecisionURL string `json:"decision_url"`
	Version     uint64 `json:"version"`
	Sequence    uint64 `json:"sequence"`
	NextPoll    int    `json:"next_poll_after"` // seconds; 0: nothing new by itself
	// OriginalStatus is the HTTP status of the first answer where the call's key had
	// recorded it before; 0 where it had not.
	OriginalStatus int `json:"original_status"`
	// ETag names what was shown, for If-None-Match and If-Match; "" where the
	// operation came in a list, a batch or an event.
	ETag string          `json:"-"`
	Raw  json.RawMessage `json:"-"`
}

// Paused says who paused an operation and when: creates and collections rest.
type Paused struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// Tag is a label on an operation.
type Tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Cost is what one job costs, as the provider's contract says, in decimals as text.
type Cost struct {
	Amount string `json:"amount"`
	Unit   string `json:"unit"`
	Max    string `json:"max"` // MaxCost of the submission
}

// Approval is that of an operation which a rule of the server's policy demands one for.
type Approval struct {
	State   string     `json:"state"`  // pending, granted, denied or lapsed
	Digest  string     `json:"digest"` // of what is sent: whoever approves or denies says it
	Params  string     `json:"params_sha256"`
	Demands []Demand   `json:"demanded_by"`
	By      string     `json:"by"`
	At      *time.Time `json:"at"`
}

// Demand is a rule that demands an approval.
type Demand struct {
	Rule   string `json:"rule"`
	Why    string `json:"why"`
	Failed string `json:"failed"` // why the rule could not be evaluated
}

// Guarantee is what holds after a create whose answer was lost.
type Guarantee struct {
	Name  string `json:"name"`
	Words string `json:"words"`
}

// Attempts counts create requests.
type Attempts struct {
	Permitted  uint64 `json:"permitted"`
	NotSent    uint64 `json:"not_sent"`
	Unresolved int    `json:"unresolved"`
}

// Job is the remote job.
type Job struct {
	ID          string     `json:"id"`
	RemoteState string     `json:"remote_state"`
	Class       string     `json:"class"`
	Progress    string     `json:"progress"`
	Adopted     bool       `json:"adopted"`
	UpdatedAt   *time.Time `json:"updated_at"`
}

// Cancel is the wish to cancel.
type Cancel struct {
	Wished   bool       `json:"wished"`
	At       *time.Time `json:"at"`
	Possible bool       `json:"possible"`
	TooLate  bool       `json:"too_late"`
}

// RunningDeadlines are absolute; nil ones do not run.
type RunningDeadlines struct {
	Approval *time.Time `json:"approval"`
	Create   *time.Time `json:"create"`
	Result   *time.Time `json:"result"`
	Cancel   *time.Time `json:"cancel"`
	Collect  *time.Time `json:"collect"`
}

// ProviderProblem is what the provider said went wrong.
type ProviderProblem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Class   string `json:"class"`
}

// ResultMeta describes a result that was collected.
type ResultMeta struct {
	Size      uint64  `json:"size"`
	MediaType string  `json:"media_type"`
	SHA256    string  `json:"sha256"`
	Checks    []Check `json:"checks"`
}

// Check is one validation of a result.
type Check struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail"`
}

// AllowedAction is something the caller may do now.
type AllowedAction struct {
	Action    string   `json:"action"`
	Method    string   `json:"method"`
	Href      string   `json:"href"`
	Decisions []string `json:"decisions"`
	Jobs      []string `json:"jobs"` // that a cleanup may be of
}

// FieldError is what is wrong with one field of a request.
type FieldError struct {
	Field   string   `json:"field"`
	Code    string   `json:"code"`
	Message string   `json:"message"`
	Allowed []string `json:"allowed"`
	// Values are the bounds, names and numbers in Message, by name.
	Values map[string]any `json:"values"`
}

// Problem is an answer that is not a success (RFC 9457).
type Problem struct {
	Type      string           `json:"type"`
	Title     string           `json:"title"`
	Status    int              `json:"status"`
	Detail    string           `json:"detail"`
	Instance  string           `json:"instance"`
	RetryWith string           `json:"retry_with"` // SameKey, NewKey or Never: the key of the next try
	Code      string           `json:"code"`       // for machines; "" if the answer was not from the API
	Retryable bool             `json:"retryable"`
	Hint      string           `json:"hint"`
	Errors    []FieldError     `json:"errors"`
	Allowed   []string         `json:"allowed"`
	Requires  string           `json:"requires"` // the scope that the key lacks
	Operation string           `json:"operation_id"`
	State     string           `json:"state"`
	Provider  *ProviderProblem `json:"problem"`
	// RetryAfter is how long to wait before the next try; 0 if that was not said.
	RetryAfter time.Duration `json:"-"`

	raw json.RawMessage // as it came; nil if it was not from the API
}

func (p *Problem) Error() string {
	s := p.Detail
	if s == "" {
		s = p.Title
	}
	if p.Code != "" {
		return fmt.Sprintf("%s: %s", p.Code, s)
	}
	return fmt.Sprintf("HTTP %d: %s", p.Status, s)
}

// Submit asks for an operation under the caller's key. replayed says that the key
// had named it before, which after a lost answer can be the doing of this very call.
func (c *Client) Submit(ctx context.Context, key string, s Submission) (op Operation, replayed bool, err error) {
	body, err := s.encode(false)
	if err != nil {
		return Operation{}, false, fmt.Errorf("submit: %w", err)
	}
	r, err := c.do(ctx, http.MethodPost, "/v1/operations", body, map[string]string{idempotencyKey: quote(key)})
	if err != nil {
		return Operation{}, false, err
	}
	op, err = readOperation(r)
	return op, r.Header.Get("Idempotent-Replayed") == "true", err
}

// encode is the submission's JSON; check says that it is not to be recorded. Marshal
// would compact the parameters; only the caller's own bytes keep their spelling, so they
// are put in by hand.
func (s Submission) encode(check bool) ([]byte, error) {
	params := s.Params
	s.Params = json.RawMessage("0")
	body, err := json.Marshal(struct {
		Submission
		Check bool `json:"validate_only,omitempty"`
	}{s, check})
	if err != nil {
		return nil, err
	}
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	return bytes.Replace(body, []byte(`"params":0`), append([]byte(`"params":`), params...), 1), nil
}

// quote spells a key as a structured-field string.
func quote(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// versionTag names a version of an operation, whatever is shown of it.
func versionTag(version uint64) string { return `"v` + strconv.FormatUint(version, 10) + `"` }

func operationPath(id string) string { return "/v1/operations/" + url.PathEscape(id) }

// Get reads an operation.
func (c *Client) Get(ctx context.Context, id string) (Operation, error) {
	r, err := c.do(ctx, http.MethodGet, operationPath(id), nil, nil)
	if err != nil {
		return Operation{}, err
	}
	return readOperation(r)
}

// Filter bounds a list. Zero fields do not filter; a zero Limit is the server's.
type Filter struct {
	// Of is whose: own, which "" is too, team, or all. The latter two take a scope.
	Of              string
	State, Provider string
	Session         string // the newest with this label, in one page
	// Reference is a client_reference: the newest that have it, in one page.
	Reference string
	Tags      map[string]string // all must match; at most 8
	Limit     int
	Cursor    string
}

// Page is one piece of a list, newest first.
type Page struct {
	Items []Operation
	Next  string // "" at the end; a page may be short or empty before
	// LeftOut says that older operations carry the filter's session or reference, too.
	LeftOut bool
}

// List reads a page of operations, the caller's unless the filter says otherwise.
func (c *Client) List(ctx context.Context, f Filter) (Page, error) {
	q := url.Values{}
	for name, v := range map[string]string{"of": f.Of, "state": f.State, "provider": f.Provider, "session": f.Session, "client_reference": f.Reference, "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Tags)) {
		q.Add("tag", name+":"+f.Tags[name])
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var answer struct {
		Items []json.RawMessage `json:"items"`
		Next  string            `json:"next_cursor"`
		Left  bool              `json:"older_left_out"`
	}
	if err := c.read(ctx, "/v1/operations?"+q.Encode(), &answer); err != nil {
		return Page{}, err
	}
	p := Page{Items: make([]Operation, 0, len(answer.Items)), Next: answer.Next, LeftOut: answer.Left}
	for _, raw := range answer.Items {
		op := Operation{}
		if err := json.Unmarshal(raw, &op); err != nil {
			return Page{}, fmt.Errorf("read the answer: %w", err)
		}
		op.Raw = raw
		p.Items = append(p.Items, op)
	}
	return p, nil
}

// Operations gives what [Client.List] lists, page after page, from the filter's
// cursor to the end. An error is the last thing given. Operations that change
// meanwhile move to the front and can be met twice, or not at all.
func (c *Client) Operations(ctx context.Context, f Filter) iter.Seq2[Operation, error] {
	return func(yield func(Operation, error) bool) {
		for {
			page, err := c.List(ctx, f)
			if err != nil {
				yield(Operation{}, err)
				return
			}
			for _, op := range page.Items {
				if !yield(op, nil) {
					return
				}
			}
			if f.Cursor = page.Next; f.Cursor == "" {
				return
			}
		}
	}
}

// Entry is one line of a timeline.
type Entry struct {
	Sequence uint64            `json:"seq"`
	Time     time.Time         `json:"time"`
	Type     string            `json:"type"`
	Source   string            `json:"source"`
	Actor    string            `json:"actor"`
	Verdict  string            `json:"verdict"`
	Row      string            `json:"row"`
	From     string            `json:"from"`
	To       string            `json:"to"`
	Reason   string            `json:"reason"`
	Fields   map[string]string `json:"fields"`
}

// Timeline reads an operation's facts with what each did, oldest first, those
// after the given sequence.
func (c *Client) Timeline(ctx context.Context, id string, after uint64) ([]Entry, error) {
	entries := []Entry{}
	for {
		var page struct {
			Entries []Entry `json:"entries"`
			Next    uint64  `json:"next_after"` // 0 at the end
		}
		err := c.read(ctx, operationPath(id)+"/timeline?after="+strconv.FormatUint(after, 10), &page)
		if err != nil {
			return nil, err
		}
		entries = append(entries, page.Entries...)
		if page.Next <= after {
			return entries, nil
		}
		after = page.Next
	}
}

// Result is an operation's result. Body must be closed; reading it to its end
// fails if the bytes are not those of SHA256.
type Result struct {
	MediaType string
	Size      int64 // -1 if the server does not say
	SHA256    string
	Body      io.ReadCloser
}

// Result reads the result. Before it is there the error is a [*Problem] with
// code result_not_ready. A result of several files is the list of them.
func (c *Client) Result(ctx context.Context, id string) (*Result, error) {
	return c.result(ctx, id, "")
}

// ResultFile reads one file of a result of several: by the name it has in the
// list that [Client.Result] gives, or by its place in it from 0. A file that is
// not in the list, or a result that is no list, is a [*Problem] with code
// validation_failed that names the files.
func (c *Client) ResultFile(ctx context.Context, id, file string) (*Result, error) {
	if file == "" {
		return nil, errors.New("no file is named")
	}
	return c.result(ctx, id, "?"+url.Values{"file": {file}}.Encode())
}

// UnacceptedResult reads a result as it came, also one that failed a check.
func (c *Client) UnacceptedResult(ctx context.Context, id string) (*Result, error) {
	return c.result(ctx, id, "?unaccepted=true")
}

func (c *Client) result(ctx context.Context, id, query string) (*Result, error) {
	r, err := c.exchange(ctx, request{method: http.MethodGet, path: operationPath(id) + "/result" + query})
	if err != nil {
		return nil, err
	}
	digest := ""
	if text, ok := strings.CutPrefix(r.Header.Get("Content-Digest"), "sha-256=:"); ok {
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(text, ":")); err == nil {
			digest = hex.EncodeToString(raw)
		}
	}
	return &Result{
		MediaType: r.Header.Get("Content-Type"), Size: r.ContentLength, SHA256: digest,
		Body: &checked{r.Body, sha256.New(), digest},
	}, nil
}

// checked compares what was read with a digest.
type checked struct {
	io.ReadCloser
	sum  hash.Hash
	want string
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	_, _ = c.sum.Write(p[:n]) // a hash never fails
	if errors.Is(err, io.EOF) && c.want != "" && hex.EncodeToString(c.sum.Sum(nil)) != c.want {
		return n, errors.New("the result's bytes are not those of its digest")
	}
	return n, err
}

// Cancel asks for the cancellation of an operation. The answer is the operation
// as it then stands; that it was asked for does not mean that it will be.
func (c *Client) Cancel(ctx context.Context, id, why string) (Operation, error) {
	return c.act(ctx, id, "cancel", why)
}

// Pause rests the creates and collections of an operation; cancels, look-ups,
// reads and deadlines go on.
func (c *Client) Pause(ctx context.Context, id, why string) (Operation, error) {
	return c.act(ctx, id, "pause", why)
}

// Resume ends the pause of an operation. It is not the decision of kind resume,
// which watches a job again after a deadline.
func (c *Client) Resume(ctx context.Context, id, why string) (Operation, error) {
	return c.act(ctx, id, "resume", why)
}

// act makes one of the requests that take a reason and nothing else.
func (c *Client) act(ctx context.Context, id, action, why string) (Operation, error) {
	return c.post(ctx, id, action, struct {
		Why string `json:"why,omitempty"`
	}{why})
}

// post asks for something to be done about an operation, under a key.
func (c *Client) post(ctx context.Context, id, action string, what any) (Operation, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return Operation{}, fmt.Errorf("%s: %w", action, err)
	}
	r, err := c.do(ctx, http.MethodPost, operationPath(id)+"/"+action, body, c.onceKey())
	if err != nil {
		return Operation{}, err
	}
	return readOperation(r)
}

// Decision is a choice on an operation that automation must not settle.
type Decision struct {
	Kind       string `json:"kind"`
	Why        string `json:"why,omitempty"`
	JobID      string `json:"job_id,omitempty"`      // adopt
	Deadline   string `json:"deadline,omitempty"`    // extend: which
	Until      string `json:"until,omitempty"`       // extend: length of time or RFC 3339
	Evidence   string `json:"evidence,omitempty"`    // mark_cancelled
	AcceptRisk bool   `json:"accept_risk,omitempty"` // retry_create
	Digest     string `json:"digest,omitempty"`      // approve and deny: Approval.Digest of the operation
}

// Decide records a decision made on the given version of the operation.
func (c *Client) Decide(ctx context.Context, id string, version uint64, key string, d Decision) (Operation, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return Operation{}, fmt.Errorf("decide: %w", err)
	}
	r, err := c.do(ctx, http.MethodPost, operationPath(id)+"/decisions", body, map[string]string{
		idempotencyKey: quote(key), "If-Match": versionTag(version),
	})
	if err != nil {
		return Operation{}, err
	}
	return readOperation(r)
}

// Params reads the operation's parameters as they were sent.
func (c *Client) Params(ctx context.Context, id string) (json.RawMessage, error) {
	var out json.RawMessage
	return out, c.read(ctx, operationPath(id)+"/params", &out)
}

// Capabilities reads what the server offers, as JSON.
func (c *Client) Capabilities(ctx context.Context) (json.RawMessage, error) {
	var out json.RawMessage
	return out, c.read(ctx, "/v1/capabilities", &out)
}

// do makes a request whose answer is read whole before it counts as one. The body
// is the caller's to close.
func (c *Client) do(ctx context.Context, method, path string, body []byte, header map[string]string) (*http.Response, error) {
	return c.exchange(ctx, request{method: method, path: path, body: body, header: header, limit: maxAnswer})
}

// readProblem reads an answer that is not a success, whoever gave it.
func readProblem(r *http.Response, body []byte) *Problem {
	p := &Problem{Title: http.StatusText(r.StatusCode)}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if media != mediaProblem || json.Unmarshal(body, p) != nil || p.Code == "" {
		p = &Problem{
			Title: http.StatusText(r.StatusCode), Detail: "the answer is not one of the API: " + http.StatusText(r.StatusCode),
			Hint: "check the server's address and what stands between",
		}
		// Of those whoever stands between says so when it could not hand the request
		// on, or had no answer in time.
		switch r.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			p.Retryable, p.RetryWith = true, SameKey
		}
	}
	p.Status = r.StatusCode
	if p.Code != "" {
		p.raw = body
	}
	p.RetryAfter = retryAfter(r.Header)
	return p
}

func (c *Client) read(ctx context.Context, path string, into any) error {
	r, err := c.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	_, err = decode(r, into)
	return err
}

func decode(r *http.Response, into any) ([]byte, error) {
	defer func() { _ = r.Body.Close() }() // it was read, or the error says why not
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("read the answer: more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return body, nil
}

func readOperation(r *http.Response) (Operation, error) {
	var op Operation
	raw, err := decode(r, &op)
	if err != nil {
		return Operation{}, err
	}
	op.Raw, op.ETag = raw, r.Header.Get("ETag")
	return op, nil
}
