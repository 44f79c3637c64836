package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nexuscore/onceq/internal/panics"
)

// Codec turns a state or a step's result into bytes and back. It is used by
// many goroutines at once.
type Codec interface {
	// Name is kept with what was encoded; a snapshot of another codec is
	// discarded. The name "json" says that Marshal returns JSON.
	Name() string
	// Marshal encodes v. An error should name the field that cannot be encoded.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data, whole, into the zero value that v points to. It
	// returns an error for anything that it cannot take over completely; v is
	// then thrown away.
	Unmarshal(data []byte, v any) error
}

// JSON is the default codec: encoding/json, but strict. It refuses strings that
// are not UTF-8 instead of changing them, and fields it does not know instead of
// skipping them, and it names the field that cannot be encoded.
//
// With it, a snapshot also carries the shape of its Go type. Fields may be added
// between deploys; a snapshot whose fields were removed, renamed or given
// another type is discarded, also where JSON alone would not notice.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (jsonCodec) Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // states hold code; "<" as "\u003c" costs six times as much
	if err := enc.Encode(v); err != nil {
		if path := culprit(v); path != "" {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return nil, err
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	// encoding/json replaces bytes that are not UTF-8 by this escape, silently.
	if bytes.Contains(out, []byte(`\ufffd`)) {
		if path := notUTF8(v); path != "" {
			return nil, fmt.Errorf("%s: string is not valid UTF-8; use []byte", path)
		}
	}
	return out, nil
}

func (jsonCodec) Unmarshal(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the JSON value")
	}
	return nil
}

// marshal and unmarshal call the codec and the host's own methods below it.

func (c *config) marshal(v any) (b []byte, err error) {
	defer panics.Catch(&err)
	return c.codec.Marshal(v)
}

func (c *config) unmarshal(data []byte, v any) (err error) {
	defer panics.Catch(&err)
	return c.codec.Unmarshal(data, v)
}
