package contract

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

const (
	// costLimit bounds one evaluation, in CEL's cost units.
	costLimit = 10_000
	// maxExpression bounds one expression, in characters.
	maxExpression = 4096
	// maxItems bounds what is read from one list of an answer.
	maxItems = 10_000
)

// kind is what an expression must give.
type kind int

const (
	boolean kind = iota
	text         // text or a number; absent if "", null or an empty optional
	list         // a list of anything
	moment       // a timestamp, RFC 3339 text, or whole seconds since 1970
	named        // a list or a mapping
	count        // a whole number of at least 0; absent as for text
	anything
)

func (k kind) String() string {
	return [...]string{"true or false", "text or a number", "a list", "a time", "a list or a mapping", "a whole number", "a value"}[k]
}

// scopes are the variables an expression may name.
type scopes struct {
	params  *cel.Env // looking at the caller's parameters alone
	request *cel.Env // building a request
	answer  *cel.Env // reading an answer: the request's and the answer's
	item    *cel.Env // reading one item of a look-up
	hook    *cel.Env // reading a webhook
	expect  *cel.Env // a caller's rule on the result
}

// newBase is what every expression may use.
func newBase() (*cel.Env, error) {
	return cel.NewEnv(
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(64),
		cel.RegexProgramSizeLimit(1000),
		cel.Function("text", cel.Overload("text_dyn", []*cel.Type{cel.DynType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				s, err := asText(v)
				if err != nil {
					return types.NewErr("text(): the value %s", err)
				}
				return types.String(s)
			}))),
		cel.Function("given", cel.Overload("given_dyn", []*cel.Type{cel.DynType}, cel.BoolType,
			cel.UnaryBinding(func(v ref.Val) ref.Val { return types.Bool(given(v)) }))),
		cel.Function("segment", cel.Overload("segment_dyn", []*cel.Type{cel.DynType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				s, err := asText(v)
				if err == nil && s == "" {
					err = errors.New("is absent")
				}
				if err != nil {
					return types.NewErr("segment(): the value %s", err)
				}
				return types.String(httprule.EscapeSegment(s))
			}))),
		cel.Function("echoes", cel.Overload("echoes_dyn_dyn", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(func(got, sent ref.Val) ref.Val { return types.Bool(echoes(got, sent)) }))),
		cel.Function("decimal", cel.Overload("decimal_int_int", []*cel.Type{cel.IntType, cel.IntType}, cel.StringType, cel.BinaryBinding(decimal))),
	)
}

func newScopes() (*scopes, error) {
	base, err := newBase()
	if err != nil {
		return nil, err
	}
	var s scopes
	received := []cel.EnvOption{
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("body", cel.DynType),
	}
	for _, step := range []struct {
		env  **cel.Env
		from *cel.Env
		opts []cel.EnvOption
	}{
		{&s.params, base, []cel.EnvOption{cel.Variable("params", cel.DynType)}},
		{&s.request, nil, []cel.EnvOption{
			cel.Variable("last", cel.DynType),
			cel.Variable("token", cel.StringType),
			cel.Variable("client_reference", cel.StringType),
			cel.Variable("callback_url", cel.StringType),
			cel.Variable("job.id", cel.StringType),
			cel.Variable("job.status_url", cel.StringType),
			cel.Variable("page", cel.StringType),
			cel.Variable("since", cel.OptionalType(cel.IntType)),
		}},
		{&s.answer, nil, append([]cel.EnvOption{
			cel.Variable("status", cel.IntType),
			cel.Variable("url", cel.StringType),
		}, received...)},
		{&s.item, nil, []cel.EnvOption{cel.Variable("item", cel.DynType)}},
		{&s.hook, base, received},
		{&s.expect, base, []cel.EnvOption{
			cel.Variable("params", cel.DynType), cel.Variable("result", cel.DynType),
			cel.Variable("result_size", cel.IntType), cel.Variable("result_lines", cel.IntType),
			cel.Variable("media_type", cel.StringType), cel.Variable("job_class", cel.StringType),
		}},
	} {
		from := step.from
		switch step.env {
		case &s.request:
			from = s.params
		case &s.answer:
			from = s.request
		case &s.item:
			from = s.answer
		}
		if *step.env, err = from.Extend(step.opts...); err != nil {
			return nil, err
		}
	}
	return &s, nil
}

// expression is a compiled one. It is safe for concurrent use.
type expression struct {
	field   string
	source  string
	kind    kind
	program cel.Program
	uses    map[string]bool // the variables it names
}

// EvalError says which expression could not be evaluated. A missing field in
// an answer is such an error, never false.
type EvalError struct {
	Field  string // "create.read.job_id"
	Source string // the expression
	Cause  string // cut, without secrets of links
}

func (e *EvalError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Field, clip(e.Source, 200), e.Cause)
}

func (e *expression) errorf(format string, args ...any) error {
	cause := fmt.Sprintf(format, args...)
	return &EvalError{e.field, e.source, clip(string(canonical.RedactLinks([]byte(cause))), 300)}
}

// expression compiles a member, or gives nil where it is missing.
func (s section) expression(env *cel.Env, name string, k kind) *expression {
	n := s.value[name]
	if n == nil {
		return nil
	}
	return s.d.expression(env, n, s.at(name), k)
}

func (d *document) expression(env *cel.Env, n *yaml.Node, field string, k kind) *expression {
	src := d.scalar(n, field)
	return d.compile(env, n, field, strings.TrimSpace(src), 0, k)
}

// compile reports problems at their place; shift is the column of src in the
// scalar.
func (d *document) compile(env *cel.Env, n *yaml.Node, field, src string, shift int, k kind) *expression {
	if src == "" {
		d.addf(n, field, "the expression is empty")
		return nil
	}
	if len(src) > maxExpression {
		d.addf(n, field, "the expression has %d bytes; at most %d are allowed", len(src), maxExpression)
		return nil
	}
	lines := strings.Split(src, "\n")
	report := func(line, column int, message string) {
		if line < 1 || line > len(lines) {
			line, column = 1, 0
		}
		at := column
		if line == 1 {
			at += shift
		}
		p := Problem{File: d.file, Field: field, Message: message}
		p.Source, p.Caret = window(lines[line-1], max(column, 0))
		p.Line, p.Column = d.place(n, line-1, max(at, 0))
		d.problems = append(d.problems, p)
	}
	ast, issues := env.Compile(src)
	if issues.Err() != nil {
		for _, e := range issues.Errors() {
			report(e.Location.Line(), e.Location.Column(), strings.ReplaceAll(e.Message, " (in container '')", ""))
		}
		return nil
	}
	if !k.accepts(ast.OutputType()) {
		hint := ""
		if k == boolean && isOptional(ast.OutputType()) {
			hint = "; a missing field is never false: end it with .orValue(false) or .hasValue()"
		}
		report(1, 0, fmt.Sprintf("gives %s, must give %s%s", cel.FormatCELType(ast.OutputType()), k, hint))
		return nil
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		report(1, 0, clip(err.Error(), 200))
		return nil
	}
	uses := map[string]bool{}
	for _, r := range ast.NativeRep().ReferenceMap() {
		if r.Name != "" {
			uses[r.Name] = true
		}
	}
	return &expression{field, src, k, program, uses}
}

// window is the part of a long line around its caret.
func window(line string, caret int) (string, int) {
	const wide = 100
	runes := []rune(line)
	caret = min(caret, len(runes))
	if len(runes) <= wide {
		return line, caret
	}
	from := max(0, min(caret-wide/2, len(runes)-wide))
	return string(runes[from : from+wide]), caret - from
}

func (k kind) accepts(t *cel.Type) bool {
	if t.Kind() == types.DynKind {
		return true
	}
	if isOptional(t) {
		return k != boolean && (k == anything || len(t.Parameters()) == 1 && k.accepts(t.Parameters()[0]))
	}
	switch k {
	case boolean:
		return t.Kind() == types.BoolKind
	case text:
		return slices.Contains([]types.Kind{types.StringKind, types.IntKind, types.UintKind, types.DoubleKind, types.NullTypeKind}, t.Kind())
	case list:
		return t.Kind() == types.ListKind
	case moment:
		return slices.Contains([]types.Kind{types.StringKind, types.IntKind, types.TimestampKind, types.NullTypeKind}, t.Kind())
	case named:
		return t.Kind() == types.ListKind || t.Kind() == types.MapKind
	case count:
		return slices.Contains([]types.Kind{types.IntKind, types.UintKind, types.NullTypeKind}, t.Kind())
	case anything:
		return true
	}
	return false
}

func isOptional(t *cel.Type) bool {
	return t.Kind() == types.OpaqueKind && t.TypeName() == types.OptionalType.TypeName()
}

func (e *expression) eval(vars *names) (ref.Val, error) {
	v, _, err := e.program.Eval(vars)
	if err != nil {
		return nil, e.errorf("%s", strings.TrimPrefix(err.Error(), "operation cancelled: "))
	}
	if types.IsUnknownOrError(v) {
		return nil, e.errorf("%v", v)
	}
	return v, nil
}

// The readers below give the zero value for a nil expression: what a contract
// does not say is absent, or not so.

func (e *expression) bool(vars *names) (bool, error) {
	if e == nil {
		return false, nil
	}
	v, err := e.eval(vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, e.errorf("gives %s, must give true or false", v.Type().TypeName())
	}
	return bool(b), nil
}

func (e *expression) text(vars *names) (string, error) {
	if e == nil {
		return "", nil
	}
	v, err := e.eval(vars)
	if err != nil {
		return "", err
	}
	s, err := asText(v)
	if err != nil {
		return "", e.errorf("the value %s", err)
	}
	return s, nil
}

// number reads a whole number. ok is false for an absent one.
func (e *expression) number(vars *names) (n int64, ok bool, err error) {
	v, err := e.eval(vars)
	if err != nil || !given(v) {
		return 0, false, err
	}
	if o, is := v.(*types.Optional); is {
		v = o.GetValue()
	}
	switch v := v.(type) {
	case types.Int:
		n = int64(v)
	case types.Uint:
		n = int64(min(v, math.MaxInt64))
	default:
		return 0, false, e.errorf("gives %s, must give a whole number", v.Type().TypeName())
	}
	if n < 0 {
		return 0, false, e.errorf("gives %d, must give a whole number of at least 0", n)
	}
	return n, true, nil
}

// pairs reads a list, with names "", or a mapping, in the order of its names. An
// absent value is none.
func (e *expression) pairs(vars *names) (names []string, values []ref.Val, err error) {
	if e == nil {
		return nil, nil, nil
	}
	v, err := e.eval(vars)
	if err != nil || !given(v) {
		return nil, nil, err
	}
	if o, ok := v.(*types.Optional); ok {
		v = o.GetValue()
	}
	var read func(k ref.Val) error
	var it traits.Iterator
	switch v := v.(type) {
	case traits.Lister:
		it = v.Iterator()
		read = func(k ref.Val) error {
			names, values = append(names, ""), append(values, k)
			return nil
		}
	case traits.Mapper:
		it = v.Iterator()
		read = func(k ref.Val) error {
			name, ok := k.(types.String)
			if !ok || !validLinkName(string(name)) {
				return e.errorf("a name must be 1 to 64 letters, digits, _, - and .")
			}
			at, _ := slices.BinarySearch(names, string(name))
			names, values = slices.Insert(names, at, string(name)), slices.Insert(values, at, v.Get(k))
			return nil
		}
	default:
		return nil, nil, e.errorf("gives %s, must give %s", v.Type().TypeName(), named)
	}
	for it.HasNext() == types.True {
		if len(values) == maxItems {
			return nil, nil, e.errorf("more than %d items", maxItems)
		}
		if err := read(it.Next()); err != nil {
			return nil, nil, err
		}
	}
	return names, values, nil
}

func validLinkName(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.", r))
	})
}

func (e *expression) list(vars *names) ([]ref.Val, error) {
	if e == nil {
		return nil, nil
	}
	v, err := e.eval(vars)
	if err != nil {
		return nil, err
	}
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return nil, nil
		}
		v = o.GetValue()
	}
	l, ok := v.(traits.Lister)
	if !ok {
		return nil, e.errorf("gives %s, must give a list", v.Type().TypeName())
	}
	var items []ref.Val
	for it := l.Iterator(); it.HasNext() == types.True; {
		if len(items) == maxItems {
			return nil, e.errorf("more than %d items", maxItems)
		}
		items = append(items, it.Next())
	}
	return items, nil
}

func (e *expression) time(vars *names) (time.Time, error) {
	if e == nil {
		return time.Time{}, nil
	}
	v, err := e.eval(vars)
	if err != nil {
		return time.Time{}, err
	}
	if o, ok := v.(*types.Optional); ok && o.HasValue() {
		v = o.GetValue()
	}
	switch v := v.(type) {
	case types.Timestamp:
		return v.Time.UTC(), nil
	case types.Int:
		if v < -62135596800 || v > 253402300799 {
			return time.Time{}, e.errorf("%d seconds is outside the years 1 to 9999", int64(v))
		}
		return time.Unix(int64(v), 0).UTC(), nil
	case types.String:
		t, err := time.Parse(time.RFC3339Nano, string(v))
		if err != nil {
			return time.Time{}, e.errorf("%q is not an RFC 3339 time with zone", clip(string(v), 40))
		}
		return t.UTC(), nil
	case types.Null:
		return time.Time{}, nil
	case *types.Optional:
		return time.Time{}, nil
	}
	return time.Time{}, e.errorf("gives %s, must give a time", v.Type().TypeName())
}

// cause is the detail to record for an error of an expression.
func cause(err error) string {
	var e *EvalError
	if errors.As(err, &e) {
		return e.Error()
	}
	return clip(err.Error(), 300)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
