package checkpointtest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/checkpoint/internal/jsonrules"
	"github.com/nexuscore/onceq/internal/panics"
)

// RoundTrip fails the test for everything in value, or in its type, that would
// not be there any more when a run resumes: what [checkpoint.JSON] cannot
// encode or decode (NaN, functions, channels, cycles, interfaces with methods,
// strings that are not UTF-8), what it leaves out silently (unexported fields,
// fields tagged json:"-"), and what comes back as something else (an int in an
// any field). Each failure names the path of the field. Fill value well: what is
// zero or nil tests little.
//
// Fields that need not survive are named in transient, by their path below S:
// "cache", "Tasks[].mu", "Index{}.hits". Nil and empty slices and maps count as
// equal, and so do times at the same instant.
func RoundTrip[S any](t testing.TB, value S, transient ...string) {
	t.Helper()
	root := reflect.TypeFor[S]()
	c := &comparer{t: t, name: root.String(), transient: transient}
	c.checkType("", root, nil)
	data, err := marshal(&value)
	if err != nil {
		t.Errorf("%s cannot be stored: %v", c.name, err)
		return
	}
	back := new(S)
	if err := unmarshal(data, back); err != nil {
		t.Errorf("%s is stored and cannot be read back: %v", c.name, err)
		return
	}
	c.compare("", "", reflect.ValueOf(&value).Elem(), reflect.ValueOf(back).Elem())
}

func marshal(v any) (b []byte, err error) {
	defer panics.Catch(&err)
	return checkpoint.JSON.Marshal(v)
}

func unmarshal(b []byte, v any) (err error) {
	defer panics.Catch(&err)
	return checkpoint.JSON.Unmarshal(b, v)
}

type comparer struct {
	t         testing.TB
	name      string
	transient []string
}

func (c *comparer) fail(path, format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("%s%s %s", c.name, path, fmt.Sprintf(format, args...))
}

// skip reports whether the path, without its leading dot, need not survive.
func (c *comparer) skip(typePath string) bool {
	return len(typePath) > 1 && slices.Contains(c.transient, typePath[1:])
}

// opaque reports whether a type is encoded by its own methods: then only its
// value can be judged. An interface is not: what is in it need not come back.
func opaque(t reflect.Type) bool {
	return t.Kind() != reflect.Interface && jsonrules.MarshalsItself(t)
}

// checkType reports what no value of the type keeps; outer are the types around.
func (c *comparer) checkType(path string, t reflect.Type, outer []reflect.Type) {
	c.t.Helper()
	if c.skip(path) || slices.Contains(outer, t) || opaque(t) {
		return
	}
	outer = append(outer[:len(outer):len(outer)], t)
	switch t.Kind() {
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		c.fail(path, "is a %s, which cannot be stored", t.Kind())
	case reflect.Interface:
		if t.NumMethod() > 0 {
			c.fail(path, "is of interface type %s, which cannot be read back", t)
		}
	case reflect.Pointer:
		c.checkType(path, t.Elem(), outer)
	case reflect.Slice, reflect.Array:
		c.checkType(path+"[]", t.Elem(), outer)
	case reflect.Map:
		c.checkType(path+"{}", t.Elem(), outer)
	case reflect.Struct:
		for f := range t.Fields() {
			at := path + "." + f.Name
			switch {
			case c.skip(at):
			case f.Tag.Get("json") == "-":
				c.fail(at, `is tagged json:"-" and is lost`)
			case jsonrules.Skipped(f):
				c.fail(at, "is unexported and is lost")
			default:
				c.checkType(at, f.Type, outer)
			}
		}
	}
}

// compare reports the differences. What is left out by design has been
// reported with the type.
func (c *comparer) compare(path, typePath string, want, got reflect.Value) {
	c.t.Helper()
	if c.skip(typePath) {
		return
	}
	if want.Kind() == reflect.Interface || want.Kind() == reflect.Pointer {
		if want.IsNil() || got.IsNil() {
			if want.IsNil() != got.IsNil() {
				c.fail(path, "was %s and comes back as %s", show(want), show(got))
			}
			return
		}
		if want.Elem().Type() != got.Elem().Type() {
			c.fail(path, "was a %s and comes back as a %s", want.Elem().Type(), got.Elem().Type())
			return
		}
		c.compare(path, typePath, want.Elem(), got.Elem())
		return
	}
	if opaque(want.Type()) {
		if !equal(want, got) {
			c.fail(path, "was %s and comes back as %s", show(want), show(got))
		}
		return
	}
	c.compareInside(path, typePath, want, got)
}

func (c *comparer) compareInside(path, typePath string, want, got reflect.Value) {
	c.t.Helper()
	switch want.Kind() {
	case reflect.Struct:
		for f := range want.Type().Fields() {
			if jsonrules.Skipped(f) {
				continue
			}
			at := "." + f.Name
			c.compare(path+at, typePath+at, want.FieldByIndex(f.Index), got.FieldByIndex(f.Index))
		}
	case reflect.Slice, reflect.Array:
		if want.Len() != got.Len() {
			c.fail(path, "had %d elements and comes back with %d", want.Len(), got.Len())
			return
		}
		for i := range want.Len() {
			c.compare(fmt.Sprintf("%s[%d]", path, i), typePath+"[]", want.Index(i), got.Index(i))
		}
	case reflect.Map:
		if want.Len() != got.Len() {
			c.fail(path, "had %d entries and comes back with %d", want.Len(), got.Len())
		}
		for it := want.MapRange(); it.Next(); {
			at := fmt.Sprintf("%s[%#v]", path, it.Key())
			if v := got.MapIndex(it.Key()); v.IsValid() {
				c.compare(at, typePath+"{}", it.Value(), v)
			} else {
				c.fail(at, "is lost")
			}
		}
	default:
		if !want.Equal(got) {
			c.fail(path, "was %s and comes back as %s", show(want), show(got))
		}
	}
}

// equal compares by the type's own Equal method where it has one.
func equal(want, got reflect.Value) bool {
	if !want.CanInterface() {
		return true // inside an unexported embedded struct: encoded, but not ours to look at
	}
	if w, ok := want.Interface().(time.Time); ok {
		return w.Equal(got.Interface().(time.Time))
	}
	m := want.MethodByName("Equal")
	if m.IsValid() && m.Type().NumIn() == 1 && m.Type().In(0) == want.Type() && m.Type().NumOut() == 1 && m.Type().Out(0).Kind() == reflect.Bool {
		return m.Call([]reflect.Value{got})[0].Bool()
	}
	return reflect.DeepEqual(want.Interface(), got.Interface())
}

func show(v reflect.Value) string {
	s := fmt.Sprintf("%#v", v)
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return s
}
