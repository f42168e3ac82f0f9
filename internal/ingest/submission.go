package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// DefaultAccount is meant where a caller names none.
const DefaultAccount = "default"

// Submission is a submit body, read and checked as far as it goes without a
// contract.
type Submission struct {
	Provider, Account, Action string

	Params    []byte // exactly the caller's bytes
	Deadlines Wishes
	NotBefore time.Time
	Expect    string
	MaxCost   string
	Tags      []events.Tag // sorted by name
	Approval  string
	Replaces  string
	RetryOf   string
	Reference string
	// AllowOverlap: a second job beside that of the operation it names is acceptable.
	AllowOverlap bool
	Session      string
	// Adopt is the job to follow instead of creating one; "" for none.
	Adopt string
	// ValidateOnly is no part of what is asked for: nothing is to be recorded.
	ValidateOnly bool

	// unsaid are part of the meaning, so that a replay of what was recorded when they were
	// taken is still one; what is not recorded yet is refused.
	unsaid unsaid

	// meaning is the canonical form of everything in the body but provider,
	// account, action, session and validate_only: what the fingerprint is over.
	meaning []byte
}

// Wish is a deadline as a caller wrote it: a length of time or a point in time.
type Wish struct {
	Length time.Duration
	At     time.Time
}

// Wishes are a caller's deadlines; those not named are nil.
type Wishes struct{ Approval, Create, Result, Cancel, Collect *Wish }

// DecodeSubmission reads a submit body. All problems of single fields are
// reported together; the error is a [*Refusal].
func DecodeSubmission(body []byte) (Submission, error) {
	var w SubmitBody
	empty, err := decodeStrict(body, &w)
	if err != nil {
		return Submission{}, err
	}
	s := Submission{unsaid: empty}
	var problems []FieldError
	add := func(problem FieldError) { problems = append(problems, problem) }
	name := func(field string, v *string, fallback string) string {
		switch {
		case v == nil && fallback != "":
			return fallback
		case v == nil || *v == "":
			add(Wrong(field, FieldRequired, "must be given", nil))
			return ""
		case !contract.ValidName(*v):
			add(badName(field))
			return ""
		}
		return *v
	}
	text := func(field string, v *string, limit int) string {
		if v == nil {
			return ""
		}
		if problem := textProblem(*v, limit); problem != nil {
			add(problem.at(field))
			return ""
		}
		return *v
	}
	id := func(field string, v *string) string {
		if v == nil || *v == "" {
			return ""
		}
		if checkID(field, *v) != nil {
			add(Wrong(field, FieldNotAllowed, "must be an operation id: {min} to {max} of a-z, 0-9 and _", Values{"min": 1, "max": maxID}))
			return ""
		}
		return *v
	}
	wish := func(field string, v *string) *Wish {
		if v == nil {
			return nil
		}
		out, err := parseWish(*v)
		if err != nil {
			add(err.at(field))
			return nil
		}
		return out
	}

	s.Provider = name("/provider", w.Provider, "")
	s.Account = name("/account", w.Account, DefaultAccount)
	s.Action = text("/action", w.Action, MaxTagName)
	s.Expect = text("/expect", w.Expect, MaxText)
	s.Approval = text("/approval", w.Approval, MaxText)
	s.Reference = text("/client_reference", w.Reference, MaxText)
	s.Session = text("/session", w.Session, MaxText)
	s.ValidateOnly = w.Validate != nil && *w.Validate
	s.Replaces = id("/replaces", w.Replaces)
	s.RetryOf = id("/retry_of", w.RetryOf)
	if s.AllowOverlap = w.Overlap != nil && *w.Overlap; s.AllowOverlap && s.Replaces == "" && s.RetryOf == "" {
		add(Wrong("/allow_overlap", FieldNotAllowed, "goes with replaces or retry_of", nil))
	}
	if w.Adopt != nil {
		if w.Adopt.JobID == nil || *w.Adopt.JobID == "" {
			add(Wrong("/adopt/job_id", FieldRequired, "must be given", nil))
		}
		s.Adopt = text("/adopt/job_id", w.Adopt.JobID, MaxText)
		if w.NotBefore != nil {
			add(Wrong("/not_before", FieldNotAllowed, "is about a create, and one that adopts sends none", nil))
		}
		if w.MaxCost != nil {
			add(Wrong("/max_cost", FieldNotAllowed, "is about a create, and one that adopts sends none", nil))
		}
	}
	if s.RetryOf != "" && s.RetryOf == s.Replaces {
		add(Wrong("/retry_of", FieldNotAllowed, "is the operation that replaces names", nil))
	}
	s.MaxCost = text("/max_cost", w.MaxCost, MaxTagName)
	if _, ok := contract.ParseDecimal(s.MaxCost); s.MaxCost != "" && !ok {
		add(Wrong("/max_cost", FieldNotAllowed, `must be a decimal number as text, such as "12.50", with at most {whole_digits} digits before and {fraction_digits} after the point`,
			Values{"whole_digits": contract.DecimalWhole, "fraction_digits": contract.DecimalFraction}))
	}
	if len(w.Params) == 0 {
		add(Wrong("/params", FieldRequired, "must be given; {} if there are none", nil))
	}
	s.Params = bytes.Clone(w.Params)
	if d := w.Deadlines; d != nil {
		s.Deadlines = Wishes{
			Approval: wish("/deadlines/approval", d.Approval), Create: wish("/deadlines/create", d.Create),
			Result: wish("/deadlines/result", d.Result), Cancel: wish("/deadlines/cancel", d.Cancel),
			Collect: wish("/deadlines/collect", d.Collect),
		}
	}
	if w.NotBefore != nil {
		at, problem := parseTime(*w.NotBefore)
		if problem != nil {
			add(problem.at("/not_before"))
		}
		s.NotBefore = at
	}
	var tagProblems []FieldError
	s.Tags, tagProblems = readTags(w.Tags)
	problems = append(problems, tagProblems...)

	if len(problems) > 0 {
		return Submission{}, Refuse(problems...)
	}
	if s.meaning, err = meaning(body); err != nil {
		return Submission{}, err
	}
	return s, nil
}

// badName refuses what is no name of a provider, account or principal.
func badName(field string) FieldError {
	return Wrong(field, FieldNotAllowed, "must be {min} to {max} of a-z, 0-9, _ and -", Values{"min": 1, "max": maxName})
}

// maxName bounds the names that contract.ValidName takes.
const maxName = 64

// decodeStrict reads a body that two readers cannot take for two things into a
// shape that has a place for each of its members. The members that say nothing are for
// the caller to refuse.
func decodeStrict(body []byte, into any) (unsaid, error) {
	if err := canonical.Check(body, MaxBody); err != nil {
		return nil, gateRefusal(err)
	}
	if jsontext.Value(body).Kind() != '{' {
		return nil, invalid("", FieldWrongType, "the body must be a JSON object", nil)
	}
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(true)); err != nil {
		var s *json.SemanticError
		if !errors.As(err, &s) {
			return nil, &Refusal{Code: CodeMalformedJSON, Detail: "the body is not JSON"}
		}
		field := string(s.JSONPointer)
		if errors.Is(err, json.ErrUnknownName) {
			return nil, invalid(clip(field), FieldUnknown, "is not a field of this request", nil, membersOf(into, s.JSONPointer.Parent())...)
		}
		return nil, invalid(clip(field), FieldWrongType, "must be of JSON type {type}", Values{"type": jsonType(s.GoType)})
	}
	return unsaidIn(body, reflect.TypeOf(into)), nil
}

// gateRefusal turns what the gate says into our codes.
func gateRefusal(err error) error {
	var e *canonical.Error
	if !errors.As(err, &e) {
		return err
	}
	r := &Refusal{}
	code, values := FieldMalformed, Values{"what": e.Detail}
	text := "{what}"
	switch e.Code {
	case canonical.Malformed:
		r.Code = CodeMalformedJSON
		text, values["at_byte"] = "{what} (at byte {at_byte})", e.Offset
	case canonical.DuplicateKey:
		r.Code, code = CodeDuplicateKey, FieldDuplicate
	case canonical.OutOfRange:
		r.Code, code = CodeNumberOutOfRange, FieldNumber
	case canonical.TooDeep:
		r.Code, code = CodeTooDeep, FieldOutOfBounds
	case canonical.TooLarge:
		r.Code, code = CodeBodyTooLarge, FieldOutOfBounds
	}
	if e.Bound != "" {
		text += " (bound: {bound})"
		values["bound"] = e.Bound
	}
	r = r.Say(text, values)
	if e.Field != "" {
		r.Errors = []FieldError{Wrong(clip(e.Field), code, text, values)}
	}
	return r
}

// clip bounds a caller's name that comes back in an answer.
func clip(s string) string {
	if len(s) > MaxKey {
		return strings.ToValidUTF8(s[:MaxKey], "") + "…"
	}
	return s
}

// membersOf lists the names that the object at the pointer may have: the body itself,
// or an object below it, also one in a list.
func membersOf(into any, at jsontext.Pointer) []string {
	t := reflect.TypeOf(into).Elem()
	for name := range at.Tokens() {
		if t.Kind() == reflect.Slice { // name is an index
			t = t.Elem()
			continue
		}
		f, ok := fieldNamed(t, name)
		if !ok {
			return nil
		}
		if t = f.Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct && (t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Struct) {
			return nil
		}
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		names = append(names, t.Field(i).Tag.Get("json"))
	}
	return names
}

func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("json") == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func jsonType(t reflect.Type) string {
	if t == nil {
		return "another"
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice:
		return "array"
	}
	return "number"
}

// meaning is the canonical text of the body without the members that are
// fingerprinted apart, without the session, which is a label: an agent that starts
// again in a new session must find its operation; and without validate_only.
func meaning(body []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	if _, err := dec.ReadToken(); err != nil {
		return nil, gateRefusal(&canonical.Error{Code: canonical.Malformed, Detail: "not valid JSON"})
	}
	out := []byte{'{'}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("read the body again: %w", err)
		}
		key := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("read the body again: %w", err)
		}
		switch key {
		case "provider", "account", "action", "session", "validate_only":
			continue
		}
		if v.Kind() == 'n' && key != "params" {
			continue // null is what leaving the member out is
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out, err = jsontext.AppendQuote(out, key)
		if err != nil {
			return nil, fmt.Errorf("read the body again: %w", err)
		}
		out = append(append(out, ':'), v...)
	}
	if _, err := dec.ReadToken(); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the body again: %w", err)
	}
	form, err := canonical.Form(append(out, '}'), MaxBody+1)
	if err != nil {
		return nil, gateRefusal(err)
	}
	return form, nil
}

// Fingerprint is what the submission asks for. Two bodies that differ in
// spelling only, or in the session, have the same.
func (s *Submission) Fingerprint() (events.Digest, error) {
	d, err := canonical.Fingerprint(s.Provider, s.Account, s.Action, s.meaning, MaxBody+1)
	if err != nil {
		return events.Digest{}, gateRefusal(err)
	}
	return d, nil
}

// Lengths turns the wishes into lengths of time from now. A zero length means
// that none was named.
func (w Wishes) Lengths(now time.Time) (events.Deadlines, error) {
	var d events.Deadlines
	var problems []FieldError
	for _, f := range []struct {
		field string
		wish  *Wish
		into  *time.Duration
	}{
		{"/deadlines/approval", w.Approval, &d.Approval},
		{"/deadlines/create", w.Create, &d.Create},
		{"/deadlines/result", w.Result, &d.Result},
		{"/deadlines/cancel", w.Cancel, &d.Cancel},
		{"/deadlines/collect", w.Collect, &d.Collect},
	} {
		if f.wish == nil {
			continue
		}
		length := f.wish.Length
		if !f.wish.At.IsZero() {
			// Sub saturates, so a far time stays far and meets the maximum.
			length = f.wish.At.Sub(now)
		}
		if length <= 0 {
			problems = append(problems, notLater(f.field, now))
			continue
		}
		*f.into = length
	}
	if len(problems) > 0 {
		return events.Deadlines{}, Refuse(problems...)
	}
	return d, nil
}

// notLater refuses a time that has passed.
func notLater(field string, now time.Time) FieldError {
	return Wrong(field, FieldInThePast, "must be later than now, {now}", Values{"now": now.UTC().Format(time.RFC3339)})
}

// parseWish reads "90s", "2h30m", "7d" or an RFC 3339 time with a zone.
func parseWish(s string) (*Wish, *FieldError) {
	if len(s) >= len("2006-01-02") && s[4] == '-' && s[0] != '-' {
		at, problem := parseTime(s)
		if problem != nil {
			return nil, problem
		}
		return &Wish{At: at}, nil
	}
	length, ok := parseLength(s)
	switch {
	case !ok:
		return nil, &FieldError{Code: FieldMalformed, Message: `must be a length of time such as "90s", "2h30m" or "7d", or a time such as "2026-12-01T09:00:00Z"`}
	case length <= 0:
		problem := Wrong("", FieldInThePast, "must be more than {more_than}", Values{"more_than": 0})
		return nil, &problem
	}
	return &Wish{Length: length}, nil
}

// parseLength reads a duration; whole days may stand alone. One beyond what a
// duration can hold is read as the longest, so that the answer names the bound.
func parseLength(s string) (time.Duration, bool) {
	if len(s) > 40 {
		return 0, false
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange), n > math.MaxInt64/int64(24*time.Hour):
			return math.MaxInt64, true
		case err != nil:
			return 0, false
		}
		return time.Duration(max(n, -1)) * 24 * time.Hour, true
	}
	d, err := time.ParseDuration(s)
	if err != nil && onlyDuration(s) {
		return math.MaxInt64, true
	}
	return d, err == nil
}

// onlyDuration says whether a text that is no duration fails by its size only.
func onlyDuration(s string) bool {
	unit := strings.TrimLeft(s, "0123456789")
	return len(unit) < len(s) && slices.Contains([]string{"ns", "us", "ms", "s", "m", "h"}, unit)
}

// The years of which a time can be.
const (
	earliestYear = 1970
	latestYear   = 2200
)

func parseTime(s string) (time.Time, *FieldError) {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, &FieldError{Code: FieldMalformed, Message: `must be an RFC 3339 time with a zone, such as "2026-12-01T09:00:00Z"`}
	}
	// The ledger's times are nanoseconds in 64 bits.
	if y := at.Year(); y < earliestYear || y > latestYear {
		problem := Wrong("", FieldOutOfBounds, "must be between the years {min} and {max}", Values{"min": earliestYear, "max": latestYear})
		return time.Time{}, &problem
	}
	return at.UTC(), nil
}

// tooLong refuses a text of more bytes than there may be.
func tooLong(field, s string, limit int) FieldError {
	return Wrong(field, FieldOutOfBounds, "has {bytes} bytes; at most {max} are allowed", Values{"bytes": len(s), "max": limit})
}

// textProblem refuses what is too long or could not be shown on a line.
func textProblem(s string, limit int) *FieldError {
	switch {
	case len(s) > limit:
		problem := tooLong("", s, limit)
		return &problem
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return &FieldError{Code: FieldNotAllowed, Message: "must not have control characters"}
	}
	return nil
}

func validTagName(name string) bool {
	return name != "" && len(name) <= MaxTagName && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	})
}

func readTags(tags map[string]string) ([]events.Tag, []FieldError) {
	var list []events.Tag
	var problems []FieldError
	if len(tags) > MaxTags {
		return nil, []FieldError{Wrong("/tags", FieldOutOfBounds, "has {names} names; at most {max} are allowed", Values{"names": len(tags), "max": MaxTags})}
	}
	for name, value := range tags {
		field := "/tags/" + clip(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
		if !validTagName(name) {
			problems = append(problems, Wrong(field, FieldNotAllowed, "the name must be {min} to {max} of a-z, 0-9, _, - and .", Values{"min": 1, "max": MaxTagName}))
			continue
		}
		if problem := textProblem(value, MaxTagValue); problem != nil {
			problem.Field = field
			problems = append(problems, *problem)
			continue
		}
		list = append(list, events.Tag{Name: name, Value: value})
	}
	slices.SortFunc(list, func(a, b events.Tag) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(problems, func(a, b FieldError) int { return strings.Compare(a.Field, b.Field) })
	return list, problems
}
